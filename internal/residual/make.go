package residual

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// Read makes a copy of the memory of processes that are frozen, and drops an older one. Expected is about
// how much memory there is; dir is where a file system is mounted for a moment. Read may return both a copy
// and an error: a part of the memory is of use, too.
func (c *Copies) Read(ctx context.Context, of Origin, expected int64, dir string, keep time.Duration,
	processes func() ([]int, error)) (*Copy, error) {
	c.Drop(of.ContainerID)
	room, err := c.room(expected, 0)
	if err != nil {
		return nil, err
	}
	file, err := c.file(dir)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	of.Started, of.Fresh = now, now
	made := &Copy{of: of, pages: memory.NewResidual(file, room), until: now.Add(keep)}
	// Nothing is tracked any more, only read: that works whatever has become of the tracker.
	pages := memory.NewSource(memory.SourceConfig{Processes: processes, Tracking: memory.Hashing})
	_, err = pages.Final(ctx, made.pages)
	return made.end(errors.Join(err, pages.Close()))
}

// Take makes a copy of the pages in a store, which it closes, and drops an older copy. After an error, the
// pages that were moved are of use. See Read.
func (c *Copies) Take(of Origin, pages *memory.Store, dir string, keep time.Duration) (*Copy, error) {
	c.Drop(of.ContainerID)
	room, err := c.room(pages.Bytes(), pages.Bytes())
	if err != nil {
		return nil, errors.Join(err, pages.Close())
	}
	file, err := c.file(dir)
	if err != nil {
		return nil, errors.Join(err, pages.Close())
	}
	made := &Copy{of: of, pages: memory.NewResidual(file, room)}
	err = made.pages.Take(pages)
	made.until = time.Now().Add(keep)
	return made.end(err)
}

// end is the copy when what there is of it was read or moved. One without any page is none.
func (c *Copy) end(err error) (*Copy, error) {
	c.incomplete = err != nil || c.of.Partial
	if c.pages.Bytes() == 0 {
		return nil, errors.Join(err, c.pages.Close())
	}
	return c, err
}

// unswappedFile makes a file that is in memory only, and that the kernel does not write to swap
// space either: what a container held may be secret, and its owner does not expect it here any
// more. It is in a file system of its own (tmpfs with noswap, Linux 6.4), which goes with it: it is
// mounted at path for a moment.
func unswappedFile(path string) (*os.File, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"mode=0700,size=100%,noswap")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory that is not swapped: %w", err), os.Remove(path))
	}
	fd, err := unix.Open(path, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("file in memory: %w", err), kernel.UnmountMemory(path))
	}
	return os.NewFile(uintptr(fd), "footprint"), kernel.UnmountMemory(path)
}
