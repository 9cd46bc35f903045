package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Task is the pid of a process in its own (innermost) pid namespace, which is the one in the names
// of CRIU's images; or, above those, the number of an Object.
type Task uint32

// Run is a number of consecutive pages of one mapping of a task.
type Run struct {
	Task    Task
	Address uint64
	Pages   uint32
	Zero    bool // every byte of every page is zero, and no content follows
}

// Area is a number of consecutive pages at an address.
type Area struct {
	Start uint64
	Pages uint64
}

// TaskMap lists the pages with content that a task must have after the restore: in ascending order, not
// overlapping, and not adjacent unless they belong to different mappings. Pages that are not listed do not
// exist: they read as zero.
type TaskMap struct {
	Task  Task
	Areas []Area
}

// Bounds of what is encoded. They hold for both sides, so a peer cannot make the other side allocate more.
const (
	// MaxRunPages is the maximum number of pages in a run: with content 1 MiB of 4 KiB pages, so that a
	// fault of another task does not wait long behind a run.
	MaxRunPages = 256
	// MaxZeroPages is the maximum number of pages in a run of zeros.
	MaxZeroPages = 1 << 20
	// MaxTasks bounds the tasks of a map. A container has at most pid_max (4,194,304) of them, and
	// real ones far fewer.
	MaxTasks = 1 << 16
	// MaxAreas bounds all areas of a map together: 16 GiB with every other page present take 4 MiB of map.
	MaxAreas = 1 << 21
	// maxTask is the largest pid of Linux (PID_MAX_LIMIT).
	maxTask = 1 << 22
	// maxAddress is the end of user space on x86_64 and arm64 with five levels of page tables.
	maxAddress = 1 << 57

	zeroBit       = 1 << 31
	mapHeaderSize = 12

	// RunHeaderSize is the size of the header of a run: see NewEncoder.
	RunHeaderSize = 16
)

// ErrMalformed is wrapped by the errors of Decode and DecodeMap for an invalid encoding.
var ErrMalformed = errors.New("malformed")

// PageSize is the size of this machine's pages in bytes. Both nodes must have the same size.
func PageSize() int { return os.Getpagesize() }

// Check returns what is wrong with a run, if anything.
func (r Run) Check() error {
	pages := uint32(MaxRunPages)
	if r.Zero {
		pages = MaxZeroPages
	}
	size := uint64(PageSize())
	switch {
	case r.Task == 0 || r.Task > lastTask:
		return fmt.Errorf("%w run of pages: task %d", ErrMalformed, r.Task)
	case r.Pages == 0 || r.Pages > pages:
		return fmt.Errorf("%w run of pages: %d pages, want 1 to %d", ErrMalformed, r.Pages, pages)
	case r.Address%size != 0 || r.Address >= maxAddress || uint64(r.Pages)*size > maxAddress-r.Address:
		return fmt.Errorf("%w run of pages: %d pages at %#x", ErrMalformed, r.Pages, r.Address)
	}
	return nil
}

// Sink takes runs of pages, one after the other, and blocks the caller while it cannot take more. A later
// run of the same pages replaces an earlier one. A Store, an Encoder, and the sender of a pipeline are
// Sinks.
type Sink interface {
	// Put takes a run. data is its content, Pages times PageSize bytes, or nothing for a zero run;
	// it is not used after Put returns.
	Put(run Run, data []byte) error
}

// Forgetter is a Sink that must know which tasks have ended.
type Forgetter interface {
	// Forget says that a task has ended, or that another has its number. What was put of it is useless.
	Forget(task Task) error
}

// Expecter is a Sink that must know what will be written again soon.
type Expecter interface {
	// Expect says whether pages put from now on will probably be written again soon.
	Expect(again bool)
}

// Encoder is a Sink that writes runs of pages as they are. It is for one goroutine.
type Encoder struct {
	w      io.Writer
	header [RunHeaderSize]byte
}

// NewEncoder returns an encoder that writes to w: for each run a header (task u32, address u64,
// pages u32 whose highest bit says that they are zero; little-endian), and the pages unless they
// are zero.
func NewEncoder(w io.Writer) *Encoder { return &Encoder{w: w} }

// Put writes a run.
func (e *Encoder) Put(r Run, data []byte) error {
	if err := r.Check(); err != nil {
		return err
	}
	pages, size := r.Pages, int(r.Pages)*PageSize()
	if r.Zero {
		pages, size = pages|zeroBit, 0
	}
	if len(data) != size {
		return fmt.Errorf("%w run of pages: %d bytes for %d pages", ErrMalformed, len(data), r.Pages)
	}
	binary.LittleEndian.PutUint32(e.header[0:], uint32(r.Task))
	binary.LittleEndian.PutUint64(e.header[4:], r.Address)
	binary.LittleEndian.PutUint32(e.header[12:], pages)
	if _, err := e.w.Write(e.header[:]); err != nil {
		return err
	}
	if size == 0 {
		return nil
	}
	_, err := e.w.Write(data)
	return err
}

// Limits bounds what Decode accepts.
type Limits struct {
	// Pages is how many pages with content may come in total, in this and the following calls; Decode
	// decrements it.
	Pages uint64
	// Runs is how many runs may come, with content or not; Decode decrements it.
	Runs uint64
}

// Decode reads runs until r ends, and passes each to place. data is valid until place returns, and nil for
// a zero run. An error of place ends Decode, which returns it unchanged.
func Decode(r io.Reader, limits *Limits, place func(run Run, data []byte) error) error {
	return new(Decoder).Decode(r, limits, place)
}

// Decoder decodes repeatedly with one buffer, which is as large as the largest run so far, 1 MiB at most.
// The zero value is ready. It is for one goroutine.
type Decoder struct{ buffer []byte }

// Decode is the function Decode with this decoder's buffer.
func (d *Decoder) Decode(r io.Reader, limits *Limits, place func(run Run, data []byte) error) error {
	for {
		run, err := decodeHeader(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if size := int(run.Pages) * PageSize(); !run.Zero && len(d.buffer) < size {
			d.buffer = make([]byte, size)
		}
		data, err := decodeContent(r, run, limits, d.buffer)
		if err != nil {
			return err
		}
		if err := place(run, data); err != nil {
			return err
		}
	}
}

// decodeHeader returns io.EOF only when r ends before a run.
func decodeHeader(r io.Reader) (Run, error) {
	var header [RunHeaderSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return Run{}, io.EOF
		}
		return Run{}, fmt.Errorf("read a run of pages: %w", err)
	}
	return ParseRun(header)
}

// ParseRun parses the header of a run, which is followed by its pages, or by nothing if they are zero.
func ParseRun(header [RunHeaderSize]byte) (Run, error) {
	pages := binary.LittleEndian.Uint32(header[12:])
	run := Run{
		Task:    Task(binary.LittleEndian.Uint32(header[0:])),
		Address: binary.LittleEndian.Uint64(header[4:]),
		Pages:   pages &^ zeroBit,
		Zero:    pages&zeroBit != 0,
	}
	return run, run.Check()
}

func decodeContent(r io.Reader, run Run, limits *Limits, buffer []byte) ([]byte, error) {
	if limits.Runs == 0 {
		return nil, fmt.Errorf("%w pages: more runs than allowed", ErrMalformed)
	}
	limits.Runs--
	if run.Zero {
		return nil, nil
	}
	if uint64(run.Pages) > limits.Pages {
		return nil, fmt.Errorf("%w pages: more pages than allowed", ErrMalformed)
	}
	limits.Pages -= uint64(run.Pages)
	data := buffer[:int(run.Pages)*PageSize()]
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("read %d pages at %#x of task %d: %w", run.Pages, run.Address, run.Task,
			noEOF(err))
	}
	return data, nil
}
