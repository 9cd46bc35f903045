package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFillLog checks that a log is written to the end of its room, and loses its oldest lines if it is too
// large. Output that the engine has written does not count as room.
func TestFillLog(t *testing.T) {
	long := strings.Repeat("l", 3*logPiece) + "\n"
	for what, c := range map[string]struct {
		room       int
		wrote      string
		came, want string
	}{
		"no room made": {0, "", "a\nb\n", "a\nb\n"},
		"room":         {6, "", "a\nb\n", "  a\nb\n"},
		"just fits":    {4, "", "a\nb\n", "a\nb\n"},
		"too large":    {3, "", "aaaa\nb\n", " b\n"},
		"long line":    {3, "", long + "b\n", " b\n"},
		"written to":   {0, "begun\n", "a\nb\n", "begun\na\nb\n"},
		"both":         {2, "x\n", "a\nb\n", "  x\na\nb\n"},
		"empty":        {3, "", "", "   "},
	} {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		for path, content := range map[string]string{from: c.came,
			to: strings.Repeat(" ", c.room) + c.wrote} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		in, err := os.Open(from)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := os.OpenFile(to, os.O_RDWR, 0)
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

// TestCopyLog checks that a log is copied without its leading blanks, and that new output is appended.
func TestCopyLog(t *testing.T) {
	e, dir := &logs{seen: map[string]copiedLog{}}, t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	log := strings.Repeat(" ", 2*logPiece)
	for _, step := range []struct{ log, want string }{
		{log, ""}, {log + "a\n", "a\n"}, {log + "a\nb\n", "a\nb\n"}, {"c\n", "c\n"}, {"c\nd\n", "c\nd\n"},
	} {
		if err := os.WriteFile(from, []byte(step.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := e.appendLog("x", to, from); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(to); err != nil || string(got) != step.want {
			t.Errorf("%q, %v, want %q", got, err, step.want)
		}
	}
}

// TestOwnLog checks that a received log is written only into the engine's directory of the container.
func TestOwnLog(t *testing.T) {
	found := Container{Directory: "/store/abc/userdata"}
	for path, want := range map[string]bool{
		"": true, "/store/abc/userdata/ctr.log": true, "/store/abc/userdata": false,
		"/store/abc/userdata2/ctr.log": false,
		"/etc/cron.d/x":                false, "/store/abc/userdata/../x": false,
		"store/abc/userdata/ctr.log": false,
	} {
		if err := ownLog(path, found); (err == nil) != want {
			t.Errorf("%q: %v", path, err)
		}
	}
	if err := ownLog("/elsewhere", Container{}); err != nil {
		t.Error(err)
	}
}
