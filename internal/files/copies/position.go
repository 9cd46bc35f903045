package copies

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
)

// position is the directory that records are about, and the directories above it, with what is to be known
// about each of them while it is changed.
type position struct {
	fsys.Descent
	spots []spot // of the directories on the way
}

// spot is what is to be known about a directory while it is changed.
type spot struct {
	made     bool // in this pass: its attributes are still to come, and nothing is inherited from it
	touched  bool // its times are not any more those that it had
	unlocked uint32
	times    [2]unix.Timespec
	growing  *growing // if others make files in it
}

// into takes over an open directory.
func (p *position) into(fd int, name string, made bool) error {
	s := spot{made: made}
	if !made {
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			unix.Close(fd)
			return err
		}
		s.times = [2]unix.Timespec{stat.Atim, stat.Mtim}
	}
	if err := p.Enter(fd, name); err != nil {
		return err
	}
	p.spots = append(p.spots, s)
	return nil
}

func (p *position) spot() *spot { return &p.spots[len(p.spots)-1] }

// edit changes which names the present directory has. If the directory forbids that, it is unlocked
// until it is left.
func (p *position) edit(change func() error) error {
	s := p.spot()
	s.touched = true
	err := change()
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	if unlocked := fsys.Unlock(p.Fd()); unlocked != 0 {
		s.unlocked |= unlocked
		err = change()
	}
	return err
}

// grow lets others make files in the present directory, which is in a tree at a path.
func (p *position) grow(tree string) error {
	s := p.spot()
	if s.growing != nil {
		return nil
	}
	fd, err := unix.FcntlInt(uintptr(p.Fd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.growing = &growing{fd: fd, tree: tree, path: p.Path("")}
	s.growing.users.Store(1)
	return nil
}

// asItWas restores what changes of its names have changed of the present directory.
func (p *position) asItWas() error {
	s := p.spot()
	if !s.touched || s.made {
		return nil
	}
	return restore(p.Fd(), s.times, s.unlocked)
}

func restore(fd int, times [2]unix.Timespec, flags uint32) error {
	err := unix.UtimesNanoAt(fd, "", times[:], unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EPERM) { // names may be added to an append-only directory, but times not set
		flags |= fsys.Unlock(fd)
		err = unix.UtimesNanoAt(fd, "", times[:], unix.AT_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("set the times: %w", err)
	}
	return fsys.AddInodeFlags(fd, flags)
}

func (p *position) ascend() error {
	err := p.spot().growing.done(false)
	p.spots = p.spots[:len(p.spots)-1]
	_, left := p.Leave()
	return errors.Join(err, left)
}

// close gives up, wherever the position is.
func (p *position) close() {
	p.Close()
	for i := range p.spots {
		_ = p.spots[i].growing.done(true)
	}
	p.spots = p.spots[:0]
}
