package compare

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
)

// A file counts as unchanged only if stat returns the same as when the file was read, and if the file was
// *settled* then: any later write moves its ctime. That does not hold for a file
//
//   - whose ctime is not before the beginning of the round: the kernel's clock for files ticks every
//     few milliseconds,
//     and a second write within a tick leaves no trace;
//   - that a process maps, shared and writable: a write to a page that is dirty already goes unnoticed
//     (do_shared_fault and do_wp_page in mm/memory.c call file_update_time at the first one only);
//   - in tmpfs, whose mapped pages are writable without a fault that would be noticed (shmem has no
//     page_mkwrite);
//   - on a file system whose times come from another clock.
//
// A write that began before the round and is still in progress does not move ctime any more either. A
// search for holes, before stat, waits until such a write has ended: ext4, btrfs, f2fs and tmpfs take the
// inode's lock for it, XFS for the reading itself.

// FileClock is the clock of a file system's times.
type FileClock int

// The clocks of file systems.
const (
	localClock   FileClock = iota
	ForeignClock           // another machine's, or unknown
	NoClock                // times say nothing about content
)

// Magic numbers of statfs(2) that are not in x/sys/unix.
const bcachefsMagic = 0xca451a4e

// ClockOf tells the clock of a file system's times.
func ClockOf(stat *unix.Statfs_t) FileClock {
	switch int64(stat.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC,
		bcachefsMagic:
		return localClock
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.HUGETLBFS_MAGIC:
		return NoClock
	default:
		return ForeignClock
	}
}

// apart is the maximum difference between another machine's clock and ours.
const apart = 24 * 60 * 60

// Mapped are the files whose content processes may change without a trace in their times: files that they
// map, shared and writable, or have open to write past the page cache.
type Mapped struct {
	Inodes map[uint64]bool // numbers, of any device: one too many does no harm
	// The last parts of their paths: in overlayfs a file may have another number than in its upper
	// directory, and directories above it may be renamed at any time. One too many does no harm
	// here either.
	Names map[string]bool
}

// contains reports whether a file of a tree may be among them.
func (m *Mapped) contains(kind files.TreeKind, number uint64, name string) bool {
	return m.Inodes[number] || kind == files.Writable && m.Names[name]
}

// Instant is the beginning of a round.
type Instant struct {
	Time   unix.Timespec // of the kernel's clock for files
	Mapped Mapped
}

// Begin records first the time and then the mapped files: a process that maps a file later moves its ctime
// with its first write.
func Begin(ctx context.Context, mapped func(context.Context) (Mapped, error)) (Instant, error) {
	var m Instant
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &m.Time); err != nil {
		return m, fmt.Errorf("read the clock: %w", err)
	}
	var err error
	if mapped != nil {
		if m.Mapped, err = mapped(ctx); err != nil {
			return m, fmt.Errorf("look for mapped files: %w", err)
		}
	}
	return m, nil
}

// Settled reports whether a later change of the file will be visible in its stat.
func (m *Instant) Settled(tree *Tree, stat *unix.Stat_t, name string) bool {
	limit := m.Time
	if tree.Clock == ForeignClock {
		limit.Sec -= apart
	}
	if stat.Ctim.Sec > limit.Sec || stat.Ctim.Sec == limit.Sec && stat.Ctim.Nsec >= limit.Nsec {
		return false
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return true
	}
	return tree.Clock != NoClock && !m.Mapped.contains(tree.Kind, stat.Ino, name)
}

// ClockOffset is how far the real-time clock is ahead of the monotonic clock, between two bounds.
type ClockOffset struct{ Least, Most time.Duration }

// ReadClocks reads both clocks several times, because it may be interrupted in between.
func ReadClocks() (ClockOffset, error) {
	best := ClockOffset{Most: 1<<63 - 1}
	for range 5 {
		var times [3]unix.Timespec
		for i, clock := range []int32{unix.CLOCK_BOOTTIME, unix.CLOCK_REALTIME, unix.CLOCK_BOOTTIME} {
			if err := unix.ClockGettime(clock, &times[i]); err != nil {
				return best, fmt.Errorf("read the clock: %w", err)
			}
		}
		shown := times[1].Nano()
		now := ClockOffset{Least: time.Duration(shown - times[2].Nano()),
			Most: time.Duration(shown - times[0].Nano())}
		if now.Most-now.Least < best.Most-best.Least {
			best = now
		}
	}
	return best, nil
}

// Behind reports whether the real-time clock was set back since an earlier reading.
func (o ClockOffset) Behind(earlier ClockOffset) bool { return o.Most < earlier.Least }
