package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// call is a system call that a thread is to make.
type call struct {
	name      string
	number    uint64
	arguments [5]uint64
	fine      unix.Errno   // this error means that the call's purpose is already met
	ready     func() error // called when the thread would make the call even if the tracer died
	done      func() error // called after the call
	orphan    bool         // made only if the tracer dies
}

// sequence is a list of system calls that a stopped thread makes one after the other, whatever they return.
// If the tracer dies, the thread makes the rest by itself: each call is followed by the return from a
// signal handler, whose frame has the registers of the next call, and finally those of the thread
// (heal.go).
type sequence struct {
	t      *Tracee
	calls  []call
	frames uint64 // of all calls but the first; 0: there is no room for them, and the tracer must not die
}

// layOutSequence writes the frames into the memory of the way back, above scratch memory that stays as it is.
func (t *Tracee) layOutSequence(calls []call, scratch int) (*sequence, error) {
	if scratch > healSlack {
		return nil, errors.New("too many arguments of system calls")
	}
	s := &sequence{t: t, calls: calls}
	size := (len(calls) - 1) * callFrameSize
	if scratch+size > healSlack {
		return s, nil
	}
	s.frames = t.scratch + uint64(healSlack-size)
	image := make([]byte, size)
	for i, c := range calls[1:] {
		t.layOutCall(image[i*callFrameSize:], s.way(i+2), c.number, c.arguments)
	}
	return s, t.write(s.frames, image)
}

// way leads the thread to a call, or to its own registers after the last.
func (s *sequence) way(i int) healing {
	if s.frames == 0 || i == len(s.calls) {
		return s.t.heal
	}
	return wayTo(s.frame(i))
}

func (s *sequence) frame(i int) uint64 { return s.frames + uint64((i-1)*callFrameSize) }

// argument returns the address of the first argument of a call in its frame.
func (s *sequence) argument(i int) uint64 {
	return s.frame(i) + callArgument
}

func (s *sequence) setArgument(i int, value uint64) error {
	s.calls[i].arguments[0] = value
	if s.frames == 0 {
		return nil
	}
	return s.t.write(s.argument(i), binary.NativeEndian.AppendUint64(nil, value))
}

// run makes the thread make all calls, and returns the first error.
func (s *sequence) run() (first error) {
	for i := range s.calls {
		if s.calls[i].orphan {
			continue
		}
		if err := s.do(i); err != nil && first == nil {
			first = fmt.Errorf("%s: %w", s.calls[i].name, err)
		}
	}
	return first
}

func (s *sequence) do(i int) error {
	c := &s.calls[i]
	if err := s.t.prepare(s.way(i+1), c.number, c.arguments); err != nil {
		return err
	}
	if c.ready != nil {
		if err := c.ready(); err != nil {
			return err
		}
	}
	if _, err := s.t.perform(); err != nil && !errors.Is(err, c.fine) {
		return err
	}
	if c.done != nil {
		return c.done()
	}
	return nil
}
