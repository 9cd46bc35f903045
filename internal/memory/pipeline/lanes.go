package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/godwit/godwit/internal/guard"
)

// MaxLanes is the maximum number of a sender's lanes.
const MaxLanes = 8

// Lane is a connection to the receiver: frames sent over it arrive in order. A lane that fails ends the
// sender.
type Lane interface {
	// Send passes a frame on, and blocks while the lane is full. The frame is not used after Send returns.
	Send(frame []byte) error
	// Push makes everything sent leave, and does not wait for that.
	Push() error
}

// ErrClosed is the error of a sender that was closed.
var ErrClosed = errors.New("the pipeline was closed")

// framesPerLane is how many frames each lane may have: one being sent, and one waiting.
const framesPerLane = 2

type frame struct{ bytes []byte }

// outbox passes frames to any lane that is free.
type outbox struct {
	free  chan *frame // its capacity bounds the memory
	queue chan *frame
	done  chan struct{} // closed after a failure or Close
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

// addFrames is called with the lock held, or before other goroutines use the outbox.
func (o *outbox) addFrames() {
	for range framesPerLane {
		o.frames++
		o.free <- &frame{bytes: make([]byte, 0, FrameBytes)}
	}
}

// add starts using a lane.
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

// give passes a frame on.
func (o *outbox) give(f *frame) { o.queue <- f } // there is room for all

// idle reports that no frame waits or is being sent, except the one that the sender holds.
func (o *outbox) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.free) == o.frames-1
}

// drain waits until the lanes have taken every frame. No frames are given meanwhile.
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

// close ends the lanes' goroutines. A goroutine that waits in a lane ends when the lane does.
func (o *outbox) close() { o.fail(ErrClosed) }
