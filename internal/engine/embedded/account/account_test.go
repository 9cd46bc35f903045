package account

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestResolveStaysInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(outside, []byte("spy:x:0:0::/:/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	traps := map[string]func(root string) error{
		"absolute link": func(root string) error { return os.Symlink(outside, root+"/etc/passwd") },
		"relative link": func(root string) error {
			return os.Symlink("../../../../../../.."+outside, root+"/etc/passwd")
		},
		"magic link": func(root string) error {
			return os.Symlink("/proc/self/root"+outside,
				root+"/etc/passwd")
		},
		"fifo":      func(root string) error { return unix.Mkfifo(root+"/etc/passwd", 0o644) },
		"directory": func(root string) error { return os.Mkdir(root+"/etc/passwd", 0o755) },
		"device": func(root string) error {
			return unix.Mknod(root+"/etc/passwd", unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5)))
		},
		"endless line": func(root string) error {
			return os.WriteFile(root+"/etc/passwd", []byte(strings.Repeat("x", 2<<20)), 0o644)
		},
	}
	for name, set := range traps {
		root := t.TempDir()
		if err := os.Mkdir(root+"/etc", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := set(root); err != nil {
			t.Fatal(err)
		}
		if who, err := Resolve(root, "spy"); err == nil {
			t.Errorf("%s: resolves to %+v", name, who)
		}
	}
}

func TestResolveFollowsLinksOfTheContainer(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"etc", "usr/lib"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/usr/lib/passwd",
		[]byte("# x\n\nbad\nann:x:7:8:,,:/h:/s\nbig:x:99999999999:1:::\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr/lib/passwd", root+"/etc/passwd"); err != nil {
		t.Fatal(err)
	}
	who, err := Resolve(root, "ann")
	if err != nil || who.User.UID != 7 || who.User.GID != 8 || who.Home != "/h" {
		t.Errorf("ann: %+v, %v", who, err)
	}
	for _, bad := range []string{"big", "bad", ":", "ann:", "4294967295", "+7"} {
		if who, err := Resolve(root, bad); err == nil && bad != ":" {
			t.Errorf("%q: %+v", bad, who)
		}
	}
}
