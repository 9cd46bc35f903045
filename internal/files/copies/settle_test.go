package copies

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/records"
)

func TestClockThatIsSetBack(t *testing.T) {
	now, err := compare.ReadClocks()
	check(t, err)
	again, err := compare.ReadClocks()
	check(t, err)
	if again.Behind(now) || now.Behind(again) {
		t.Errorf("%v and then %v, and nobody has set the clock", now, again)
	}
	back := compare.ClockOffset{Least: now.Least - time.Second, Most: now.Most - time.Second}
	if !back.Behind(now) {
		t.Error("a clock that was set back by a second is not noticed")
	}
	// From then on no time stamp is trusted: later writes may get one that the file had before.
	root := scratch(t)
	write(t, filepath.Join(root, "file"), "before")
	c := startCopy(t, root)
	c.do(records.LiveRound)
	settle(t)
	c.do(records.LiveRound)
	if s := c.do(records.LiveRound); s.ReadBytes != 0 {
		t.Fatalf("a settled file was read: %+v", s)
	}
	c.source.clock = compare.ClockOffset{Least: now.Least + time.Hour, Most: now.Most + time.Hour}
	if s := c.do(records.LiveRound); s.ReadBytes != int64(len("before")) || s.SentBytes != 0 {
		t.Errorf("after the clock was set back: %+v", s)
	}
	c.end()
}

// TestWritesThroughAMapping covers writes that the kernel does not note: all but the first to a page.
func TestWritesThroughAMapping(t *testing.T) {
	root := scratch(t)
	path := filepath.Join(root, "mapped")
	write(t, path, noise(300<<10, 9))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	memory, err := unix.Mmap(int(f.Fd()), 0, 300<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	defer func() { check(t, unix.Munmap(memory)) }()
	memory[5000] = 'a' // Its page is dirty and writable from now on.
	settle(t)

	var stat unix.Stat_t
	check(t, unix.Fstat(int(f.Fd()), &stat))
	c := startCopy(t, root)
	c.source.config.Mapped = func(context.Context) (compare.Mapped, error) {
		return compare.Mapped{Inodes: map[uint64]bool{stat.Ino: true}}, nil
	}
	if s := c.do(records.LiveRound); s.UnsettledFiles != 1 || s.UnsettledBytes != 300<<10 {
		t.Errorf("a mapped file: %+v", s)
	}
	memory[5000] = 'b'
	c.do(records.LiveRound)
	memory[5001] = 'c'
	c.end()
}

func TestMappingsThatCannotBeRead(t *testing.T) {
	c := startCopy(t, scratch(t))
	failure := errors.New("no such container")
	c.source.config.Mapped = func(context.Context) (compare.Mapped, error) {
		return compare.Mapped{}, failure
	}
	for range 2 { // A source that has failed stays failed.
		if _, err := c.source.Round(t.Context(), os.Stdout, nil); !errors.Is(err, failure) {
			t.Errorf("round without knowing what is mapped: %v", err)
		}
	}
}
