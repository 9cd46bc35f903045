package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// grown makes a tree with a long path, a file of 5 bytes with two names, and a link that leads out.
func grown(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "tree")
	check(t, os.MkdirAll(filepath.Join(root, strings.Repeat("d/", 200)), 0o700))
	check(t, os.WriteFile(filepath.Join(root, "d", "file"), []byte("12345"), 0o600))
	check(t, os.Link(filepath.Join(root, "d", "file"), filepath.Join(root, "other")))
	check(t, os.Symlink("..", filepath.Join(root, "out")))
	return root
}

func TestTreesAreMeasuredAndRemoved(t *testing.T) {
	root := grown(t)
	beside := filepath.Join(filepath.Dir(root), "beside")
	check(t, os.WriteFile(beside, nil, 0o600))
	size, err := TreeSize(context.Background(), Tree{Path: root})
	if err != nil || size.Entries != 204 || size.Bytes != 10 {
		t.Errorf("%+v, %v", size, err)
	}
	check(t, EmptyTree(root))
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("%d names are left, %v", len(left), err)
	}
	check(t, RemoveTree(root))
	check(t, RemoveTree(root)) // it is gone already
	if _, err := os.Stat(beside); err != nil {
		t.Errorf("what the link leads to: %v", err)
	}
}

func TestContentMovesOnlyToFreeNames(t *testing.T) {
	from, to := grown(t), t.TempDir()
	check(t, os.WriteFile(filepath.Join(to, "other"), []byte("stays"), 0o600))
	check(t, MoveContent(from, to))
	if text, err := os.ReadFile(filepath.Join(to, "other")); err != nil || string(text) != "stays" {
		t.Errorf("%q, %v", text, err)
	}
	if left, err := os.ReadDir(from); err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("%v is left, %v", left, err)
	}
	if err := MoveContent(from, filepath.Join(to, "nowhere")); err == nil {
		t.Error("moved to a directory that is not there")
	}
}

func TestSpace(t *testing.T) {
	dir := t.TempDir()
	check(t, CheckSpace(dir, 1))
	var none *NoSpaceError
	if err := CheckSpace(dir, 1<<62); !errors.As(err, &none) || none.Needed != 1<<62 ||
		!errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
}

func TestUsage(t *testing.T) {
	u := Usage{Limits: Limits{Bytes: 10, Entries: 2}}
	check(t, u.Names(2))
	if u.Names(1) == nil {
		t.Error("more names than were agreed on")
	}
	u.Bytes = 4
	if !u.Room(6) || u.Room(7) {
		t.Error("room for 6 bytes, and for no more")
	}
	u.Gone(&unix.Stat_t{Mode: unix.S_IFREG, Nlink: 1, Size: 3, Blocks: 8})
	if u.Bytes != 1 || u.Entries != 2 {
		t.Errorf("%+v", u)
	}
}
