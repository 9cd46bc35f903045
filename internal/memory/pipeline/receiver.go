package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/godwit/godwit/internal/memory"
)

// ErrMissing is wrapped by errors that say that pages have not come, so that the memory is useless.
var ErrMissing = errors.New("pages of the container's memory are missing")

// Pages is where a receiver puts pages; a memory.Store is one.
type Pages interface {
	memory.Sink
	PageReader
	memory.Forgetter
}

// PageReader reads existing pages.
type PageReader interface {
	// ReadPage reads a page, or returns false if it is not there.
	ReadPage(task memory.Task, address uint64, page []byte) (bool, error)
}

// ReceiverConfig says where to put pages.
type ReceiverConfig struct {
	Key   Key
	Pages Pages
	Base  PageReader // pages that this node had before; may be nil
	// Barrier is called when everything before a barrier is placed, with the pages that are missing so far;
	// may be nil. No frame is applied while it runs.
	Barrier func(number uint64, missing []memory.TaskMap) error
}

// Receiver applies frames in the order in which they were made. Any goroutine may call its methods.
type Receiver struct {
	config ReceiverConfig

	mu       sync.Mutex
	turn     sync.Cond
	next     uint64 // number of the next frame
	barrier  uint64 // the last one
	failed   error
	applying bool

	// The following fields belong to the goroutine that has the turn.
	hash    *Hasher
	missing missing
	buffer  []byte
	size    int
}

// NewReceiver returns a receiver.
func NewReceiver(config ReceiverConfig) (*Receiver, error) {
	hash, err := NewHasher(config.Key)
	if err != nil {
		return nil, err
	}
	r := &Receiver{config: config, hash: hash, size: memory.PageSize(), missing: missing{}}
	r.buffer = make([]byte, maxRun*r.size)
	r.turn.L = &r.mu
	return r, nil
}

// ReadFrame reads the data of one call of a lane's Send, until r ends, into a buffer, and returns the
// buffer.
func ReadFrame(r io.Reader, buffer []byte) ([]byte, error) {
	if cap(buffer) < FrameBytes+1 {
		buffer = make([]byte, FrameBytes+1)
	}
	n, err := io.ReadFull(r, buffer[:FrameBytes+1])
	switch {
	case err == nil:
		return buffer, malformed("it has more than %d bytes", FrameBytes)
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return buffer[:n], nil
	}
	return buffer, fmt.Errorf("receive pages: %w", err)
}

// Frame waits until all earlier frames are applied, and applies one. After an error the receiver is
// useless.
func (r *Receiver) Frame(frame []byte) error {
	if len(frame) < numberBytes {
		return r.Fail(malformed("it has %d bytes", len(frame)))
	}
	number := binary.LittleEndian.Uint64(frame)
	if err := r.await(number); err != nil {
		return err
	}
	err := r.apply(frame[numberBytes:])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applying = false
	if err != nil && r.failed == nil {
		r.failed = fmt.Errorf("receive pages: %w", err)
	}
	r.next++
	r.turn.Broadcast()
	return r.failed
}

// await waits for a frame's turn.
func (r *Receiver) await(number uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.failed == nil && number > r.next {
		r.turn.Wait()
	}
	if r.failed == nil && (number < r.next || r.applying) {
		r.failed = fmt.Errorf("receive pages: %w", malformed("frame %d came twice", number))
		r.turn.Broadcast()
	}
	r.applying = r.failed == nil
	return r.failed
}

// Fail ends the receiver: goroutines that wait for a turn get this error, which Fail returns.
func (r *Receiver) Fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = err
	}
	r.turn.Broadcast()
	return err
}

// Await waits until everything before a barrier is placed.
func (r *Receiver) Await(number uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.failed == nil && r.barrier < number {
		r.turn.Wait()
	}
	return r.failed
}

// Complete returns nil if the memory may be used: nothing has failed and nothing is missing. Call it after
// all frames were passed to Frame.
func (r *Receiver) Complete() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.applying && r.failed == nil {
		r.turn.Wait()
	}
	if r.failed != nil {
		return r.failed
	}
	if n := len(r.missing); n > 0 {
		return fmt.Errorf("%w: %d of them referred to what this node has not got (any more)", ErrMissing, n)
	}
	return nil
}

// apply executes a frame.
func (r *Receiver) apply(b []byte) error {
	for len(b) > 0 {
		one, rest, err := parseRecord(b)
		if err == nil {
			b, err = r.record(one, rest)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// record executes a record, and returns the data after it.
func (r *Receiver) record(one record, rest []byte) ([]byte, error) {
	switch one.kind {
	case kindZero:
		return rest, r.put(one, nil)
	case kindContent:
		bytes := int(one.pages) * r.size
		if len(rest) < bytes {
			return nil, malformed("it ends in the content of %d pages", one.pages)
		}
		return rest[bytes:], r.put(one, rest[:bytes])
	case kindCopy, kindBase:
		return r.copy(one, rest)
	case kindDelta:
		return r.delta(one, rest)
	case kindForget:
		r.missing.forget(one.task)
		return rest, r.config.Pages.Forget(one.task)
	}
	return rest, r.reached(one.address)
}

// reached records that everything before a barrier is placed.
func (r *Receiver) reached(number uint64) error {
	r.mu.Lock()
	last := r.barrier
	r.barrier = number
	r.mu.Unlock()
	if number != last+1 {
		return malformed("barrier %d comes after %d", number, last)
	}
	r.turn.Broadcast()
	if r.config.Barrier == nil {
		return nil
	}
	return r.config.Barrier(number, r.missing.maps())
}

func (r *Receiver) put(one record, data []byte) error {
	r.missing.found(one)
	return r.config.Pages.Put(memory.Run{Task: one.task, Address: one.address, Pages: one.pages,
		Zero: one.kind == kindZero}, data)
}

// copy copies content from elsewhere, if it is what the sender means.
func (r *Receiver) copy(one record, rest []byte) ([]byte, error) {
	from, want, rest, err := parseSource(one, rest)
	if err != nil {
		return nil, err
	}
	var sum check
	for i := range int(one.pages) {
		page := r.buffer[i*r.size : (i+1)*r.size]
		there, err := r.read(from, page)
		if err != nil {
			return nil, err
		}
		if !there {
			return rest, r.missing.lost(one)
		}
		sum = sum.add(r.hash.Page(page))
		from.address += uint64(r.size)
	}
	if sum != want {
		return rest, r.missing.lost(one)
	}
	return rest, r.put(one, r.buffer[:int(one.pages)*r.size])
}

// read reads a page to which the sender refers.
func (r *Receiver) read(from location, page []byte) (bool, error) {
	if from.base {
		if r.config.Base == nil {
			return false, nil
		}
		return r.config.Base.ReadPage(from.task, from.address, page)
	}
	return r.config.Pages.ReadPage(from.task, from.address, page)
}

// delta changes pages, if they are what the sender means.
func (r *Receiver) delta(one record, rest []byte) ([]byte, error) {
	if one.pages > maxRun || len(rest) < checkBytes {
		return nil, malformed("a delta of %d pages in %d bytes", one.pages, len(rest))
	}
	want := check(binary.LittleEndian.Uint64(rest))
	rest = rest[checkBytes:]
	var sum check
	whole := true
	for i := range int(one.pages) {
		if len(rest) < lengthBytes {
			return nil, malformed("it ends in a delta")
		}
		length := int(binary.LittleEndian.Uint16(rest))
		if len(rest)-lengthBytes < length {
			return nil, malformed("it ends in a delta of %d bytes", length)
		}
		page := r.buffer[i*r.size : (i+1)*r.size]
		there, err := r.config.Pages.ReadPage(one.task, one.address+uint64(i*r.size), page)
		if err == nil {
			err = ApplyDelta(page, rest[lengthBytes:lengthBytes+length])
		}
		if err != nil {
			return nil, err
		}
		whole = whole && there
		sum = sum.add(r.hash.Page(page))
		rest = rest[lengthBytes+length:]
	}
	if !whole || sum != want {
		return rest, r.missing.lost(one)
	}
	return rest, r.put(one, r.buffer[:int(one.pages)*r.size])
}
