package copies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// hooked is a writer that calls a function before its second write, when a round is under way.
type hooked struct {
	bytes.Buffer
	pieces int
	hook   func() error
}

func (w *hooked) Write(p []byte) (int, error) {
	if w.pieces++; w.pieces == 2 {
		if err := w.hook(); err != nil {
			return 0, err
		}
	}
	return w.Buffer.Write(p)
}

// crowd makes a large file and so many small ones that a round, while it sends the first, cannot have read
// those behind it.
func crowd(t *testing.T, root string) {
	t.Helper()
	write(t, filepath.Join(root, "n"), strings.Repeat("large", 100_000))
	for i := range 1500 {
		write(t, filepath.Join(root, fmt.Sprintf("n%04d", i)), "")
	}
}

// TestALinkThatIsMadeBesideTheFinalRound acts like a checkpoint with open files that were unlinked but have
// other names: it links them beside the final round.
func TestALinkThatIsMadeBesideTheFinalRound(t *testing.T) {
	root := scratch(t)
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("a-name"), "content")
	c := startCopy(t, root)
	c.do(records.LiveRound)
	settle(t)
	c.do(records.LiveRound)
	check(t, os.Mkdir(at("z-dir"), 0o755))
	crowd(t, root)
	settle(t)

	var stream bytes.Buffer
	w := &hooked{hook: func() error { return os.Link(at("a-name"), at("z-dir/link_remap.1")) }}
	_, err := c.source.Final(context.Background(), w, nil)
	check(t, err)
	stream = w.Buffer
	_, err = c.mirror.Round(context.Background(), &stream)
	check(t, err)
	c.do(records.LastRound)
	c.compare()
}

func TestFilesThatWereOnlyReadAreNotReadAgain(t *testing.T) {
	root := scratch(t)
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("small"), "small")
	write(t, at("large"), strings.Repeat("large", 100_000))
	write(t, at("linked"), "linked")
	check(t, os.Link(at("linked"), at("other")))
	c := startCopy(t, root)
	c.do(records.LiveRound)
	settle(t)
	c.do(records.LiveRound)

	// The access time is the only time that the kernel itself sets without changing the ctime.
	for _, name := range []string{"small", "large", "linked"} {
		read(t, at(name))
	}
	stats := c.do(records.FinalRound)
	if stats.ReadBytes != 0 || stats.SentBytes != 0 || stats.ChangedEntries != 3 {
		t.Errorf("%+v", stats)
	}
	c.do(records.LastRound)
	c.compare()
}

// read reads a file so that its access time changes, whatever the mount options of its file system.
func read(t *testing.T, path string) {
	t.Helper()
	var before, after unix.Stat_t
	check(t, unix.Stat(path, &before))
	check(t, unix.Mount("", mountOf(t, path), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_STRICTATIME, ""))
	for deadline := time.Now().Add(10 * time.Second); before.Atim == after.Atim || after.Ino == 0; {
		_, err := os.ReadFile(path)
		check(t, err)
		check(t, unix.Stat(path, &after))
		if time.Now().After(deadline) {
			t.Fatalf("reading %s moves no access time", path)
		}
	}
	if before.Ctim != after.Ctim {
		t.Fatalf("reading %s moves its ctime", path)
	}
}

// mountOf makes a directory a separate mount, once, and returns it.
func mountOf(t *testing.T, path string) string {
	t.Helper()
	dir := filepath.Dir(path)
	var here, above unix.Statx_t
	check(t, unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID, &here))
	check(t, unix.Statx(unix.AT_FDCWD, filepath.Dir(dir), 0, unix.STATX_MNT_ID, &above))
	if here.Mnt_id == above.Mnt_id {
		check(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
		t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	}
	return dir
}

// TestAFileThatCannotBeReadIsNotLeftOut reads as a user without permission, like root on some network file
// systems.
func TestAFileThatCannotBeReadIsNotLeftOut(t *testing.T) {
	root := scratch(t)
	write(t, filepath.Join(root, "secret"), "x")
	check(t, os.Chown(filepath.Join(root, "secret"), 1, 1))
	check(t, os.Chmod(filepath.Join(root, "secret"), 0))
	check(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0))
	dir := must(unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0))
	defer unix.Close(dir)
	r := &fileReader{xattrs: fsys.NewXattrReader()}
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		errs <- withoutPower()
		_, err := r.open(dir, "secret", unix.DT_REG)
		errs <- err
		s, err := r.open(dir, "fifo", unix.DT_REG)
		if s != nil {
			err = errors.New("a fifo was opened as a file")
		}
		errs <- err
	}()
	check(t, <-errs)
	if err := <-errs; !errors.Is(err, unix.EACCES) {
		t.Errorf("a file that cannot be read: %v", err)
	}
	check(t, <-errs)
}

// withoutPower makes file modes apply to the current thread.
func withoutPower() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return err
	}
	sets[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	return unix.Capset(&head, &sets[0])
}

func TestMoreAttributesThanTravelAreRefusedAtOnce(t *testing.T) {
	root := scratch(t)
	check(t, unix.Mount("tmpfs", root, "tmpfs", 0, ""))
	t.Cleanup(func() { check(t, unix.Unmount(root, unix.MNT_DETACH)) })
	value := make([]byte, 60<<10)
	for i := range fsys.MaxXattrBytes/len(value) + 1 {
		check(t, unix.Setxattr(root, fmt.Sprintf("trusted.%d", i), value, 0))
	}
	err := sendTrees(context.Background(), &bytes.Buffer{}, []files.Tree{{Kind: files.Writable, Path: root}},
		nil)
	if err == nil || !strings.Contains(err.Error(), "extended attributes") {
		t.Errorf("got %v", err)
	}
}
