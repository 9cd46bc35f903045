package cgroup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// passing is a short-lived state in which CRIU cannot dump a process. FreezeToMove thaws the group
// until the state is over, then freezes the group again.
type passing interface {
	fmt.Stringer
	// goesOn reports whether the state is not over yet.
	goesOn() bool
	// remedy is what the user can do if it does not end.
	remedy() string
}

// passingPatience limits how long FreezeToMove waits for a moment without such a state. Most are
// over in less than a millisecond; sshd authenticates a client in some tenths of a second.
const passingPatience = 5 * time.Second

var errNeverDumpable = fmt.Errorf("there was no moment within %s at which all processes could be dumped",
	passingPatience)

// FreezeToMove freezes the group as Freeze does, at a moment at which all of its threads can continue on
// another machine: no thread is reading a clock or waiting in vfork(2), and every process has a free
// descriptor.
func (c *Cgroup) FreezeToMove(ctx context.Context) (time.Time, error) {
	at, err := c.freezeToMove(ctx)
	if err != nil {
		return time.Time{}, errors.Join(fmt.Errorf("freeze cgroup %s: %w", c.freeze.dir, err), c.Thaw())
	}
	return at, nil
}

func (c *Cgroup) freezeToMove(ctx context.Context) (time.Time, error) {
	patient, cancel := context.WithTimeoutCause(ctx, passingPatience, errNeverDumpable)
	defer cancel()
	for {
		if err := c.awaitSandboxes(patient); err != nil {
			return time.Time{}, err
		}
		at, err := c.freezeOutsideClocks(ctx)
		if err != nil {
			return at, err
		}
		found, err := c.allPassing()
		if err != nil || len(found) == 0 {
			return at, err
		}
		if err := errors.Join(c.Thaw(), awaitEnd(patient, found)); err != nil {
			return at, err
		}
	}
}

// awaitSandboxes waits in a running group until no process lacks a descriptor. Freezing such a process for
// a moment may kill it: sshd's sandbox (seccomp) does not allow restart_syscall(2), with which the kernel
// continues a poll(2) or nanosleep(2) that a freeze has interrupted. Other processes with such a filter
// cannot be recognised: PTRACE_SECCOMP_GET_FILTER requires a stopped process (kernel/ptrace.c,
// ptrace_check_attach), and a stop by PTRACE_INTERRUPT makes the kernel continue by restart_syscall.
func (c *Cgroup) awaitSandboxes(ctx context.Context) error {
	full, err := c.fullProcesses()
	if err != nil {
		return err
	}
	found := make([]passing, len(full))
	for i, one := range full {
		found[i] = one
	}
	return awaitEnd(ctx, found)
}

// allPassing finds the passing states of a frozen group.
func (c *Cgroup) allPassing() ([]passing, error) {
	forks, err := c.vforks()
	if err != nil {
		return nil, err
	}
	full, err := c.fullProcesses()
	if err != nil {
		return nil, err
	}
	var found []passing
	for _, one := range forks {
		found = append(found, one)
	}
	for _, one := range full {
		found = append(found, one)
	}
	return found, nil
}

// awaitEnd waits in a running group until these states are over.
func awaitEnd(ctx context.Context, found []passing) error {
	for _, one := range found {
		for pause := kernel.NewBackoff(); one.goesOn(); pause.Wait() {
			if ctx.Err() != nil {
				break
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w; %s", one, context.Cause(ctx), one.remedy())
		}
	}
	return nil
}
