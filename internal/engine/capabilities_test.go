package engine

import (
	"strings"
	"testing"
)

// TestCheckCapabilities: a row of the table that says more or less than the engine has is an error.
func TestCheckCapabilities(t *testing.T) {
	right := Capabilities{Facts: Facts{Name: "new", ImagesAt: NoImages}}
	if err := right.Check(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*Facts){
		"images":          func(f *Facts) { f.ImagesAt = OwnedImages },
		"routed networks": func(f *Facts) { f.Routed = true },
		"restarts":        func(f *Facts) { f.Restarts = true },
		"marks":           func(f *Facts) { f.Marks = true },
	} {
		wrong := right
		change(&wrong.Facts)
		if err := wrong.Check(); err == nil || !strings.Contains(err.Error(), "engine new: "+what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTable: both forms of the table have a heading and a row for each engine.
func TestTable(t *testing.T) {
	rows := []Facts{{Name: "a", Anew: true, Addresses: PoolAddresses, ImagesAt: AgentImages, Volumes: true},
		{Name: "bird", Addresses: OwnedAddresses, ImagesAt: OwnedImages, Setup: true}}
	text := strings.Split(Table(rows), "\n")
	if len(text) != 4 || !strings.HasPrefix(text[0], "ENGINE  MODES") ||
		strings.Join(strings.Fields(text[1]), " ") != "a all pool godwit yes - - - -" ||
		strings.Join(strings.Fields(text[2]), " ") != "bird all but restart engine engine - - - - yes" {
		t.Errorf("%q", text)
	}
	if want := "| bird | all but restart | engine | engine | - | - | - | - | yes |\n"; !strings.HasSuffix(
		MarkdownTable(rows), "\n"+want) {
		t.Errorf("%q", MarkdownTable(rows))
	}
	if len(Columns()) != len(rows[0].Row()) {
		t.Error("a row has not one cell for each column")
	}
}
