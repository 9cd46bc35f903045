package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWhatIsSettled(t *testing.T) {
	const day = 24 * 60 * 60
	now := unix.Timespec{Sec: 10 * day, Nsec: 500}
	mapped := Mapped{Inodes: map[uint64]bool{7: true}, Names: map[string]bool{"db": true}}
	for name, c := range map[string]struct {
		ctime  unix.Timespec
		number uint64
		mode   uint32
		kind   TreeKind
		clock  fileClock
		name   string
		want   bool
	}{
		"long ago":         {ctime: unix.Timespec{Sec: 1}, want: true},
		"just before":      {ctime: unix.Timespec{Sec: now.Sec, Nsec: 499}, want: true},
		"in the same tick": {ctime: now},
		"later":            {ctime: unix.Timespec{Sec: now.Sec + 1}},
		"mapped":           {ctime: unix.Timespec{Sec: 1}, number: 7},
		"a directory has no mappings": {ctime: unix.Timespec{Sec: 1}, number: 7, mode: unix.S_IFDIR,
			want: true},
		"mapped through overlayfs": {ctime: unix.Timespec{Sec: 1}, kind: Writable, name: "db"},
		"another name": {ctime: unix.Timespec{Sec: 1}, kind: Writable, name: "top",
			want: true},
		"same name in a volume": {ctime: unix.Timespec{Sec: 1}, kind: VolumeOf, name: "db",
			want: true},
		"tmpfs": {ctime: unix.Timespec{Sec: 1}, clock: noClock},
		"a directory in tmpfs": {ctime: unix.Timespec{Sec: 1}, clock: noClock, mode: unix.S_IFDIR,
			want: true},
		"another clock, within a day": {ctime: unix.Timespec{Sec: now.Sec - day + 1},
			clock: foreignClock},
		"another clock, more than a day": {ctime: unix.Timespec{Sec: now.Sec - day - 1},
			clock: foreignClock, want: true},
		"another clock, exactly a day ago": {ctime: unix.Timespec{Sec: now.Sec - day, Nsec: now.Nsec},
			clock: foreignClock},
	} {
		t.Run(name, func(t *testing.T) {
			since := instant{time: now, mapped: mapped}
			mode := c.mode
			if mode == 0 {
				mode = unix.S_IFREG
			}
			stat := unix.Stat_t{Ino: c.number, Mode: mode, Ctim: c.ctime}
			tree := &scanTree{Tree: Tree{Kind: c.kind}, clock: c.clock}
			if got := since.settled(tree, &stat, c.name); got != c.want {
				t.Errorf("settled: %v", got)
			}
		})
	}
}

func TestClockThatIsSetBack(t *testing.T) {
	now, err := offset()
	check(t, err)
	again, err := offset()
	check(t, err)
	if again.behind(now) || now.behind(again) {
		t.Errorf("%v and then %v, and nobody has set the clock", now, again)
	}
	back := clockOffset{now.least - time.Second, now.most - time.Second}
	if !back.behind(now) {
		t.Error("a clock that was set back by a second is not noticed")
	}
	// From then on no time stamp is trusted: later writes may get one that the file had before.
	root := scratch(t)
	write(t, filepath.Join(root, "file"), "before")
	c := startCopy(t, root)
	c.do(liveRound)
	settle(t)
	c.do(liveRound)
	if s := c.do(liveRound); s.ReadBytes != 0 {
		t.Fatalf("a settled file was read: %+v", s)
	}
	c.source.clock = clockOffset{now.least + time.Hour, now.most + time.Hour}
	if s := c.do(liveRound); s.ReadBytes != int64(len("before")) || s.SentBytes != 0 {
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
	c.source.config.Mapped = func(context.Context) (Mapped, error) {
		return Mapped{Inodes: map[uint64]bool{stat.Ino: true}}, nil
	}
	if s := c.do(liveRound); s.UnsettledFiles != 1 || s.UnsettledBytes != 300<<10 {
		t.Errorf("a mapped file: %+v", s)
	}
	memory[5000] = 'b'
	c.do(liveRound)
	memory[5001] = 'c'
	c.end()
}

func TestMappingsThatCannotBeRead(t *testing.T) {
	c := startCopy(t, scratch(t))
	failure := errors.New("no such container")
	c.source.config.Mapped = func(context.Context) (Mapped, error) { return Mapped{}, failure }
	for range 2 { // A source that has failed stays failed.
		if _, err := c.source.Round(t.Context(), os.Stdout, nil); !errors.Is(err, failure) {
			t.Errorf("round without knowing what is mapped: %v", err)
		}
	}
}
