package embedded

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWithoutRunc checks that runc's message about a program that it cannot run does not count as the
// program's output.
func TestWithoutRunc(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	var out strings.Builder
	w := &withoutRunc{to: &out, pidFile: pid}
	write := func(text string) {
		if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("%q: %d, %v", text, n, err)
		}
	}
	write("first\n")
	write(runcWords + "no such file\n")
	if out.String() != "first\n" {
		t.Errorf("passed on: %q", out.String())
	}
	if err := os.WriteFile(pid, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	write("it was the program\n")
	write(runcWords + "again\n")
	if err := w.end(); err != nil || out.String() != "first\n"+runcWords+"no such file\nit was the program\n"+
		runcWords+"again\n" {
		t.Errorf("in the end: %q, %v", out.String(), err)
	}
}
