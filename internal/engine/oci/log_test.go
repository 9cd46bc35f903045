package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFillLog: a log lies at the end of its room, without the blanks that it had before, and loses its oldest lines if it is too large.
func TestFillLog(t *testing.T) {
	long := strings.Repeat("l", 3*logPiece) + "\n"
	for what, c := range map[string]struct {
		room       int
		came, want string
	}{
		"no room made": {0, "a\nb\n", "a\nb\n"},
		"room":         {6, "a\nb\n", "  a\nb\n"},
		"blanks":       {6, "     a\nb\n", "  a\nb\n"},
		"just fits":    {4, "a\nb\n", "a\nb\n"},
		"too large":    {3, "aaaa\nb\n", " b\n"},
		"long line":    {3, long + "b\n", " b\n"},
		"empty":        {3, "", "   "},
		"only blanks":  {3, "  ", "   "},
	} {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		for path, content := range map[string]string{from: c.came, to: strings.Repeat(" ", c.room)} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		in, err := os.Open(from)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := os.OpenFile(to, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := fillLog(out, in); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		out.Close()
		if got, err := os.ReadFile(to); err != nil || string(got) != c.want {
			t.Errorf("%s: %.40q, %v, want %q", what, got, err, c.want)
		}
	}
}
