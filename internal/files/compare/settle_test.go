package compare

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
)

func TestWhatIsSettled(t *testing.T) {
	const day = 24 * 60 * 60
	now := unix.Timespec{Sec: 10 * day, Nsec: 500}
	mapped := Mapped{Inodes: map[uint64]bool{7: true}, Names: map[string]bool{"db": true}}
	for name, c := range map[string]struct {
		ctime  unix.Timespec
		number uint64
		mode   uint32
		kind   files.TreeKind
		clock  FileClock
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
		"mapped through overlayfs": {ctime: unix.Timespec{Sec: 1}, kind: files.Writable, name: "db"},
		"another name": {ctime: unix.Timespec{Sec: 1}, kind: files.Writable, name: "top",
			want: true},
		"same name in a volume": {ctime: unix.Timespec{Sec: 1}, kind: files.VolumeOf, name: "db",
			want: true},
		"tmpfs": {ctime: unix.Timespec{Sec: 1}, clock: NoClock},
		"a directory in tmpfs": {ctime: unix.Timespec{Sec: 1}, clock: NoClock, mode: unix.S_IFDIR,
			want: true},
		"another clock, within a day": {ctime: unix.Timespec{Sec: now.Sec - day + 1},
			clock: ForeignClock},
		"another clock, more than a day": {ctime: unix.Timespec{Sec: now.Sec - day - 1},
			clock: ForeignClock, want: true},
		"another clock, exactly a day ago": {ctime: unix.Timespec{Sec: now.Sec - day, Nsec: now.Nsec},
			clock: ForeignClock},
	} {
		t.Run(name, func(t *testing.T) {
			since := Instant{Time: now, Mapped: mapped}
			mode := c.mode
			if mode == 0 {
				mode = unix.S_IFREG
			}
			stat := unix.Stat_t{Ino: c.number, Mode: mode, Ctim: c.ctime}
			tree := &Tree{Tree: files.Tree{Kind: c.kind}, Clock: c.clock}
			if got := since.Settled(tree, &stat, c.name); got != c.want {
				t.Errorf("settled: %v", got)
			}
		})
	}
}
