package testbed

import (
	"strings"
	"testing"
)

func TestTimeCommand(t *testing.T) {
	var out strings.Builder
	if err := TimeCommand(t.Context(), []string{"true"}, &out); err != nil {
		t.Fatal(err)
	}
	if seconds, err := ParseTimed(out.String()); err != nil || seconds <= 0 {
		t.Errorf("true took %v seconds, error %v", seconds, err)
	}
	out.Reset()
	if err := TimeCommand(t.Context(), []string{"cat", "/no/such/file"}, &out); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseTimed(out.String()); err == nil ||
		!strings.Contains(err.Error(), "/no/such/file: No such file") {
		t.Errorf("the error of a command that failed is %v", err)
	}
}
