package kernel

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// holding is a process whose threads are all stopped. Its first thread can be made to make system calls.
type holding struct {
	pid    int
	held   map[int]*Tracee // by thread; after release, those that it could not release
	before func()          // see tracee
}

// stop stops all threads, including those that others start meanwhile.
func (h *holding) stop() error {
	h.held = map[int]*Tracee{}
	first := &Tracee{PID: h.pid, TID: h.pid, before: h.before}
	if err := first.look(); err != nil {
		return err
	}
	if err := first.seize(); err != nil {
		return err
	}
	h.held[h.pid] = first
	if err := h.interrupt(first); err != nil {
		return err
	}
	for more := true; more; {
		var err error
		if more, err = h.stopOthers(); err != nil {
			return err
		}
	}
	if err := first.save(); err != nil {
		return err
	}
	if err := first.confirm(); err != nil {
		return err
	}
	if err := first.protect(); err != nil {
		return fmt.Errorf("%w: %w", ErrUntraceable, err)
	}
	return nil
}

// stopOthers stops the threads that are not stopped yet, and reports whether there were any.
func (h *holding) stopOthers() (more bool, err error) {
	threads, err := ThreadsOf(h.pid)
	if err != nil {
		return false, err
	}
	var found []*Tracee
	for _, tid := range threads {
		if h.held[tid] != nil {
			continue
		}
		t := &Tracee{PID: h.pid, TID: tid, before: h.before}
		if err := t.Ptrace(unix.PTRACE_SEIZE, 0, 0); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return false, fmt.Errorf("%w: seize thread %d: %w", ErrUntraceable, tid, err)
		}
		t.Seized = true
		h.held[tid] = t
		found = append(found, t)
		_ = t.Ptrace(unix.PTRACE_INTERRUPT, 0, 0) // if it is gone, awaitStop notices
	}
	for _, t := range found {
		if err := t.AwaitStop(); errors.Is(err, fs.ErrNotExist) {
			delete(h.held, t.TID)
		} else if err != nil {
			return false, err
		}
	}
	return len(found) > 0, nil
}

func (h *holding) interrupt(t *Tracee) error {
	if err := t.Ptrace(unix.PTRACE_INTERRUPT, 0, 0); err != nil {
		return fmt.Errorf("interrupt thread %d: %w", t.TID, err)
	}
	return t.AwaitStop()
}

// first is the first thread.
func (h *holding) first() *Tracee { return h.held[h.pid] }

// release lets all threads continue, the first one with its own registers.
func (h *holding) release() error {
	var failed error
	for tid, t := range h.held {
		if err := t.Release(); err != nil {
			failed = err
			continue
		}
		delete(h.held, tid)
	}
	return failed
}

// free reports whether no thread is held.
func (h *holding) free() bool { return len(h.held) == 0 }
