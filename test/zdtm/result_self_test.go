package zdtm

import (
	"path/filepath"
	"reflect"
	"testing"
)

// TestSummarise counts outcomes, finds results worse than plain runc's, and resumes from a file.
func TestSummarise(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zdtm.json")
	r, err := readResults(path, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range [][]one{
		{{"b", runc, passed, ""}, {"b", cold, lost, "x"}, {"b", hybrid, refused, "x"}},
		// not worse: it does not pass with runc either
		{{"a", runc, rolledBack, "x"}, {"a", cold, failed, "x"}},
		{{"c", runc, unfit, "x"}, {"c", cold, unfit, "x"}},
	} {
		if err := r.add(found...); err != nil {
			t.Fatal(err)
		}
	}
	if r, err = readResults(path, true); err != nil {
		t.Fatal(err)
	}
	d := summarise(r.cases)
	if want := []string{"b (cold, lost)"}; !reflect.DeepEqual(d.Worse, want) {
		t.Errorf("worse: %v, want %v", d.Worse, want)
	}
	if n := d.Ways[cold]; n[lost] != 1 || n[failed] != 1 || n[passed] != 0 || len(d.Cases) != 7 {
		t.Errorf("cold: %v of %d cases", n, len(d.Cases))
	}
	if got := r.of("b"); len(got) != 3 || got[hybrid].Result != refused {
		t.Errorf("b: %v", got)
	}
	if r, err = readResults(path, false); err != nil || len(r.cases) != 0 {
		t.Errorf("a new run begins with %d cases, %v", len(r.cases), err)
	}
}
