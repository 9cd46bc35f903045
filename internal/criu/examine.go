package criu

import (
	"context"
	"errors"
)

// Problem is one thing that CRIU cannot dump.
type Problem struct {
	PID    int    // process, in the caller's pid namespace
	Inside int    // the same process as the container sees it
	Name   string // its command name
	FD     int    // descriptor, -1 if it is none
	What   string // for example: io_uring
	Why    string
	Remedy string
}

// String is the problem's subject in one line: process 12 (worker), descriptor 7: io_uring.
func (p Problem) String() string { return p.What }

// Subject is what Examine looks at.
type Subject struct {
	PIDs  []int    // all processes of the container (kernel.Cgroup.Procs)
	Stdio []string // what descriptors.json names: pipes that the restore gets from outside
}

// Examine lists what in the given processes CRIU cannot dump. It changes nothing, and does not stop them, so what it
// says is about this moment. Processes that end meanwhile are left out.
func Examine(ctx context.Context, subject Subject) ([]Problem, error) {
	return nil, errors.ErrUnsupported
}
