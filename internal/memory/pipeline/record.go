package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/memory"
)

type kind uint8

const (
	kindNone kind = iota
	kindZero
	kindContent
	kindCopy
	kindBase
	kindDelta
	kindForget
	kindBarrier
	kindsEnd
)

const (
	headerBytes = 16
	sourceBytes = 12 // of a copy
	checkBytes  = 8
	lengthBytes = 2 // of a delta
	numberBytes = 8 // of a frame
	kindShift   = 24

	// FrameBytes is the maximum size of a frame: large enough that its number and the overhead of a lane
	// are negligible, and small enough that only a few frames wait for a slow link.
	FrameBytes = 256 << 10
	// maxRun is the maximum number of pages of a record with data for each page.
	maxRun = memory.MaxRunPages
)

// ErrMalformed is wrapped by the receiver's errors for data that no sender makes.
var ErrMalformed = errors.New("malformed frame of pages")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// record is a parsed header.
type record struct {
	kind    kind
	task    memory.Task
	address uint64
	pages   uint32
}

func (r record) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(r.task))
	b = binary.LittleEndian.AppendUint64(b, r.address)
	return binary.LittleEndian.AppendUint32(b, uint32(r.kind)<<kindShift|r.pages)
}

// parseRecord parses the header at the beginning of a frame. The result is within the store's bounds.
func parseRecord(b []byte) (record, []byte, error) {
	if len(b) < headerBytes {
		return record{}, nil, malformed("it ends in a header")
	}
	word := binary.LittleEndian.Uint32(b[12:])
	r := record{
		kind: kind(word >> kindShift), task: memory.Task(binary.LittleEndian.Uint32(b)),
		address: binary.LittleEndian.Uint64(b[4:]), pages: word & (1<<kindShift - 1),
	}
	if r.kind == kindNone || r.kind >= kindsEnd {
		return record{}, nil, malformed("a record of the unknown kind %d", r.kind)
	}
	switch r.kind {
	case kindBarrier:
		if r.task != 0 || r.pages != 0 {
			return record{}, nil, malformed("a barrier with task %d and %d pages", r.task, r.pages)
		}
		return r, b[headerBytes:], nil
	case kindForget:
		if r.address != 0 || r.pages != 0 || !validTask(r.task) {
			return record{}, nil, malformed("task %d is to be forgotten with %d pages at %#x", r.task,
				r.pages, r.address)
		}
		return r, b[headerBytes:], nil
	}
	run := memory.Run{Task: r.task, Address: r.address, Pages: r.pages, Zero: r.kind == kindZero}
	if err := run.Check(); err != nil {
		return record{}, nil, malformed("%v", err)
	}
	return r, b[headerBytes:], nil
}

func validTask(task memory.Task) bool {
	return memory.Run{Task: task, Pages: 1, Zero: true}.Check() == nil
}

// parseSource parses the source of a copy, and its check, in a frame.
func parseSource(r record, b []byte) (location, check, []byte, error) {
	if len(b) < sourceBytes+checkBytes {
		return location{}, 0, nil, malformed("it ends in a reference")
	}
	from := location{
		task: memory.Task(binary.LittleEndian.Uint32(b)), address: binary.LittleEndian.Uint64(b[4:]),
		base: r.kind == kindBase,
	}
	if err := (memory.Run{Task: from.task, Address: from.address, Pages: r.pages}).Check(); err != nil {
		return location{}, 0, nil, malformed("a reference to %v", err)
	}
	size := uint64(r.pages) * uint64(memory.PageSize())
	if !from.base && from.task == r.task && from.address < r.address+size && r.address < from.address+size {
		return location{}, 0, nil, malformed("%d pages at %#x refer to themselves at %#x", r.pages, r.address,
			from.address)
	}
	return from, check(binary.LittleEndian.Uint64(b[sourceBytes:])), b[sourceBytes+checkBytes:], nil
}
