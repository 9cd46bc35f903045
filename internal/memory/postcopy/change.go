package postcopy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
)

// A change is a page as a delta to the target's earlier content: task (u32), address (u64), digest of the
// page (2 x u64), length of the delta (u16), delta.
const (
	changeHeader = 4 + 8 + 16 + 2
	// maxDelta: a page that has changed more is sent whole.
	maxDelta = 1 << 11
)

// ErrStale means that a page that was sent as a change does not match its digest. It was not accepted. If a
// process needs it, the connections end, and the next ones get whole pages.
var ErrStale = errors.New("a remote page was sent as a change to something else than what is here")

// changer makes changes. It may be used by several goroutines.
type changer struct {
	known func(task memory.Task, address uint64, page []byte) bool

	mu     sync.Mutex
	hasher *pipeline.Hasher
	old    []byte
}

func newChanger(known func(memory.Task, uint64, []byte) bool, key pipeline.Key) (*changer, error) {
	hasher, err := pipeline.NewHasher(key)
	if err != nil {
		return nil, err
	}
	return &changer{known: known, hasher: hasher, old: make([]byte, memory.PageSize())}, nil
}

// append appends a change to the target's earlier content, or returns false if that is unknown or differs
// too much.
func (c *changer) append(b []byte, task memory.Task, address uint64, page []byte) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known(task, address, c.old) {
		return b, false
	}
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(task))
	b = binary.LittleEndian.AppendUint64(b, address)
	b = append(b, make([]byte, changeHeader-12)...)
	b, short := pipeline.AppendDelta(b, c.old, page, maxDelta)
	if !short {
		return b[:at], false
	}
	digest := c.hasher.Page(page)
	binary.LittleEndian.PutUint64(b[at+12:], digest[0])
	binary.LittleEndian.PutUint64(b[at+20:], digest[1])
	binary.LittleEndian.PutUint16(b[at+28:], uint16(len(b)-at-changeHeader))
	return b, true
}

// change is a parsed change.
type change struct {
	task    memory.Task
	address uint64
	digest  pipeline.Digest
	delta   []byte // valid until the next one is read
}

// decodeChanges reads changes until r ends, and passes each to place.
func decodeChanges(r io.Reader, place func(change) error) error {
	w := &witness{Reader: r}
	var header [changeHeader]byte
	delta := make([]byte, maxDelta)
	for {
		if _, err := io.ReadFull(w, header[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return w.blame("a change", err)
		}
		length := binary.LittleEndian.Uint16(header[28:])
		if length > maxDelta {
			return peerError("a change of %d bytes", length)
		}
		if _, err := io.ReadFull(w, delta[:length]); err != nil {
			return w.blame("a change", err)
		}
		err := place(change{
			task:    memory.Task(binary.LittleEndian.Uint32(header[0:])),
			address: binary.LittleEndian.Uint64(header[4:]),
			digest: pipeline.Digest{binary.LittleEndian.Uint64(header[12:]),
				binary.LittleEndian.Uint64(header[20:])},
			delta: delta[:length],
		})
		if err != nil {
			return err
		}
	}
}

// Before is what the target had of remote pages.
type Before interface {
	// ReadPage reads a page, and reports whether there was one. It is called by one goroutine at a time for
	// a page, until that page is put.
	ReadPage(task memory.Task, address uint64, page []byte) (bool, error)
}

// patcher applies changes. It is for one goroutine.
type patcher struct {
	before Before
	hasher *pipeline.Hasher
	page   []byte
}

func newPatcher(before Before, key pipeline.Key) (*patcher, error) {
	hasher, err := pipeline.NewHasher(key)
	if err != nil {
		return nil, err
	}
	return &patcher{before: before, hasher: hasher, page: make([]byte, memory.PageSize())}, nil
}

// apply returns the page, which is valid until the next call.
func (p *patcher) apply(c change) ([]byte, error) {
	there, err := p.before.ReadPage(c.task, c.address, p.page)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: read what was here at %#x of task %d: %w", ErrStale, c.address, c.task,
			err)
	case !there:
		return nil, fmt.Errorf("%w: nothing was here at %#x of task %d", ErrStale, c.address, c.task)
	}
	if err := pipeline.ApplyDelta(p.page, c.delta); err != nil {
		return nil, peerError("change at %#x of task %d: %w", c.address, c.task, err)
	}
	if p.hasher.Page(p.page) != c.digest {
		return nil, fmt.Errorf("%w: at %#x of task %d", ErrStale, c.address, c.task)
	}
	return p.page, nil
}
