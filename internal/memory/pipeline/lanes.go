package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/godwit/godwit/internal/guard"
)

// MaxLanes is the most lanes that a sender has.
const MaxLanes = 8

// Lane is one way to the receiver: what is sent over it arrives in order. A lane that fails ends the sender.
type Lane interface {
	// Send hands over a frame, and makes the sender wait while the way is full. The frame is not
	// used after it returns.
	Send(frame []byte) error
	// Push sees to it that all that was sent leaves, and does not wait for it.
	Push() error
}

// ErrClosed is the error of a sender that was closed.
var ErrClosed = errors.New("the pipeline was closed")

// framesPerLane is how many frames each lane may have: one to send, and one that waits.
const framesPerLane = 2

type frame struct{ bytes []byte }

// outbox gives frames to whichever lane has time.
type outbox struct {
	free  chan *frame // its content bounds the memory
	queue chan *frame
	done  chan struct{} // closed when it has failed or was closed
	lanes sync.WaitGroup
	same  sync.Mutex // held while the number of frames must not change

	mu     sync.Mutex
	all    []Lane
	frames int
	err    error
}

func newOutbox() *outbox {
	o := &outbox{
		free:  make(chan *frame, framesPerLane*(MaxLanes+1)),
		queue: make(chan *frame, framesPerLane*(MaxLanes+1)),
		done:  make(chan struct{}),
	}
	o.addFrames()
	return o
}

// addFrames is called with the lock held, or before there is anybody else.
func (o *outbox) addFrames() {
	for range framesPerLane {
		o.frames++
		o.free <- &frame{bytes: make([]byte, 0, FrameBytes)}
	}
}

// add begins to use a lane.
func (o *outbox) add(lane Lane) error {
	o.same.Lock()
	defer o.same.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	if len(o.all) == MaxLanes {
		return fmt.Errorf("add a connection for pages: there are %d already", MaxLanes)
	}
	o.all = append(o.all, lane)
	o.addFrames()
	o.lanes.Go(func() { o.carry(lane) })
	return nil
}

// carry sends frames over one lane.
func (o *outbox) carry(lane Lane) {
	for {
		select {
		case f := <-o.queue:
			if err := guard.Do(func() error { return lane.Send(f.bytes) }); err != nil {
				o.fail(err)
				return
			}
			o.free <- f // there is room for all
		case <-o.done:
			return
		}
	}
}

// fail ends the outbox for a reason; the first one counts.
func (o *outbox) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
		close(o.done)
	}
}

func (o *outbox) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// take waits for an empty frame.
func (o *outbox) take() (*frame, error) {
	select {
	case f := <-o.free:
		f.bytes = f.bytes[:0]
		return f, nil
	case <-o.done:
		return nil, o.failure()
	}
}

// give hands a frame on.
func (o *outbox) give(f *frame) { o.queue <- f } // there is room for all

// idle tells that no frame waits or is being sent, but for the one that the sender has.
func (o *outbox) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.free) == o.frames-1
}

// drain waits until the lanes have taken all that was given. Nothing is given meanwhile.
func (o *outbox) drain(ctx context.Context) error {
	o.same.Lock()
	defer o.same.Unlock()
	o.mu.Lock()
	lanes, frames := o.all, o.frames
	o.mu.Unlock()
	for n := range frames {
		select {
		case f := <-o.free:
			defer func() { o.free <- f }()
		case <-o.done:
			return o.failure()
		case <-ctx.Done():
			return fmt.Errorf("wait for %d frames of pages to leave: %w", frames-n, ctx.Err())
		}
	}
	for _, lane := range lanes {
		if err := lane.Push(); err != nil {
			o.fail(err)
			return err
		}
	}
	return nil
}

// close ends the lanes' goroutines. Those that wait in a lane end when the lane does.
func (o *outbox) close() { o.fail(ErrClosed) }
