package copies

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// TestADirectoryThatWasThereIsAsItWas undoes copies into an existing directory.
func TestADirectoryThatWasThereIsAsItWas(t *testing.T) {
	source := awkward(t)
	check(t, unix.Setxattr(source, "user.of-the-source", []byte("x"), 0))
	stream := send(t, files.Tree{Kind: files.Writable, Path: source})
	for _, length := range []int{len(stream), len(stream) / 2, 20} {
		target := scratch(t)
		check(t, os.Chown(target, 5, 6))
		check(t, unix.Chmod(target, 0o2751))
		check(t, unix.Setxattr(target, "user.of-the-target", []byte("y"), 0))
		check(t, unix.Setxattr(target, "system.posix_acl_default", acl(7), 0))
		setFlags(t, target, fsys.FlagNoDump)
		check(t, os.Chtimes(target, timeOf(3), timeOf(4)))
		want := snapshot(t, target, nil)

		m := NewMirror(func(files.TreeKind, string) (string, error) { return target, nil }, files.Limits{})
		if _, err := m.Round(context.Background(),
			bytes.NewReader(stream[:length])); (err == nil) != (length == len(stream)) {
			t.Errorf("%d bytes of %d: %v", length, len(stream), err)
		}
		check(t, m.Undo())
		same(t, want, snapshot(t, target, nil))
	}
}

// TestLinkedFilesInADirectoryThatWasRemovedTakeNoRoom: the space is freed before the end of the copy,
// because a container may make and remove such directories all the time.
func TestLinkedFilesInADirectoryThatWasRemovedTakeNoRoom(t *testing.T) {
	root := scratch(t)
	at := func(name string) string { return filepath.Join(root, name) }
	check(t, os.MkdirAll(at("d/e"), 0o755))
	for _, name := range []string{"gone", "moved", "stays"} {
		write(t, at("d/"+name), name)
		check(t, os.Link(at("d/"+name), at("d/e/"+name)))
	}
	check(t, os.Link(at("d/stays"), at("stays")))
	c := startCopy(t, root)
	c.do(records.LiveRound)
	check(t, os.MkdirAll(at("new"), 0o755))
	check(t, os.Rename(at("d/moved"), at("new/moved")))
	check(t, os.Rename(at("d/e/moved"), at("new/moved too")))
	check(t, os.RemoveAll(at("d")))
	c.do(records.LiveRound)
	if left, err := filepath.Glob(filepath.Join(c.to, ".godwit-*", "*")); err != nil || len(left) != 1 {
		t.Errorf("%v, %v are kept, want one, of what was moved", left, err)
	}
	check(t, os.Link(at("stays"), at("stays too")))
	c.end()
}
