package records

import (
	"encoding/binary"
	"io"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
)

// A round is a separate stream (see blocks.go) that changes what earlier rounds have made. A record is a
// byte with its kind, followed by its fields; integers are varints, strings follow their length. All are
// relative to one open directory; names are single path elements.
//
//	round      number kind         comes first
//	tree       kind name           what follows is in this tree's root; more than once in a round if need be
//	directory  name                make it and go in
//	enter      name                go into one that is there
//	leave      entry               give the directory all its attributes, and go up
//	up                             go up; the directory keeps its attributes
//	other      entry [ops]         make anything but a directory
//	change     entry content [ops] give what is there under this name these attributes, and this content
//	remove     name                with all that is in it
//	park       name number         take it away, and keep it under a number
//	place      number entry content [ops]  give something with a number this name, then as change
//	placeDir   number name         give a directory that was parked this name, and go in
//	link       name number         another name of an inode that has a number
//	forget     number              nothing will refer to it again
//	end        trees entries bytes
//
// A number is an inode's (Entry.Links), from its first round to the last, or that of something parked; both
// share one sequence in a tree. Content of a regular file is a sequence of operations from its beginning
// on. Anything that they do not reach, up to the file's size, is a hole.
//
//	end
//	data       length(4, little endian) bytes
//	hole       length
//	keep       length              as it is there already
//	copy       from length         out of the content before this change; only if content says WithCopies
const (
	RecordRound RecordKind = iota + 1
	recordTree
	RecordDirectory
	recordEnter
	recordLeave
	recordUp
	RecordOther
	RecordChange
	RecordRemove
	recordPark
	RecordPlace
	recordPlaceDirectory
	recordLink
	recordForget
	RecordEnd
)

// RoundKind is the kind of a round.
type RoundKind byte

// The kinds of rounds.
const (
	LiveRound  RoundKind = iota // files may change while they are read
	FinalRound                  // nothing changes any more
	LastRound                   // changes by the program that froze it; ends the copy
)

// ContentKind says how the content of a regular file changes.
type ContentKind byte

// The ways in which content changes.
const (
	KeepContent ContentKind = iota // it stays, no operations follow
	InPlace                        // operations follow, without copies
	WithCopies                     // operations follow; the previous content is needed until the end
)

// ContentOp is the kind of an operation on content.
type ContentOp byte

// The operations, as in the table of records.
const (
	OpEnd ContentOp = iota
	OpData
	OpHole
	OpKeep
	OpCopy
)

// DataHeader is the size of the header of a data operation.
const dataHeader = 1 + 4

// RoundWriter writes a round. It counts for the closing record. It keeps the first error.
type RoundWriter struct {
	Encoder
	err     error
	trees   uint64
	Entries uint64
	Content uint64
}

// NewRoundWriter begins a round. Progress, which may be nil, is called now and then with the number of
// bytes written to out.
func NewRoundWriter(out io.Writer, number uint64, kind RoundKind, progress func(sent int64)) (*RoundWriter,
	error) {
	blocks, err := NewBlockWriter(out, progress)
	if err != nil {
		return nil, err
	}
	w := &RoundWriter{Encoder: Encoder{Out: blocks}}
	w.Kind(RecordRound)
	w.Number(number)
	w.Scratch = append(w.Scratch, byte(kind))
	return w, w.flush()
}

// NewUnsent returns a writer of a round that nobody reads.
func NewUnsent() *RoundWriter {
	return &RoundWriter{Encoder: Encoder{Out: &BlockWriter{out: io.Discard, digest: nowhere{},
		Block: make([]byte, blockHeader, firstBlock)}}}
}

func (w *RoundWriter) flush() error {
	if w.err == nil {
		w.err = w.Emit()
	}
	return w.err
}

func (w *RoundWriter) named(kind RecordKind, name string) error {
	w.Kind(kind)
	w.Text(name)
	return w.flush()
}

// Tree goes into the root of a tree.
func (w *RoundWriter) Tree(kind files.TreeKind, name string) error {
	w.trees++
	w.Kind(recordTree)
	w.Text(string(kind))
	w.Text(name)
	return w.flush()
}

// Directory makes a directory and goes in.
func (w *RoundWriter) Directory(name string) error { return w.named(RecordDirectory, name) }

// Enter goes into a directory that is there.
func (w *RoundWriter) Enter(name string) error { return w.named(recordEnter, name) }

// Remove removes a name, with all that is in it.
func (w *RoundWriter) Remove(name string) error { return w.named(RecordRemove, name) }

// Leave gives the directory all its attributes, and goes up.
func (w *RoundWriter) Leave(entry *fsys.Entry) error {
	w.Entries++
	w.Kind(recordLeave)
	w.Entry(entry)
	return w.flush()
}

// Up goes up; the directory keeps its attributes.
func (w *RoundWriter) Up() error {
	w.Kind(recordUp)
	return w.flush()
}

// Other is followed by operations if the entry is a regular file.
func (w *RoundWriter) Other(entry *fsys.Entry) error {
	w.Entries++
	w.Kind(RecordOther)
	w.Entry(entry)
	return w.flush()
}

// Change is followed by operations unless the content stays.
func (w *RoundWriter) Change(entry *fsys.Entry, content ContentKind) error {
	w.Entries++
	w.Kind(RecordChange)
	w.Entry(entry)
	w.Scratch = append(w.Scratch, byte(content))
	return w.flush()
}

// Park takes a name away, and keeps what it named under a number.
func (w *RoundWriter) Park(name string, number uint64) error {
	w.Kind(recordPark)
	w.Text(name)
	w.Number(number)
	return w.flush()
}

// Place is followed by operations unless the content stays.
func (w *RoundWriter) Place(number uint64, entry *fsys.Entry, content ContentKind) error {
	w.Entries++
	w.Kind(RecordPlace)
	w.Number(number)
	w.Entry(entry)
	w.Scratch = append(w.Scratch, byte(content))
	return w.flush()
}

// PlaceDirectory gives a parked directory this name, and goes in.
func (w *RoundWriter) PlaceDirectory(number uint64, name string) error {
	w.Kind(recordPlaceDirectory)
	w.Number(number)
	w.Text(name)
	return w.flush()
}

// Link gives an inode that has a number another name.
func (w *RoundWriter) Link(name string, number uint64) error {
	w.Entries++
	w.Kind(recordLink)
	w.Text(name)
	w.Number(number)
	return w.flush()
}

// Forget says that nothing will refer to a number again.
func (w *RoundWriter) Forget(number uint64) error {
	w.Kind(recordForget)
	w.Number(number)
	return w.flush()
}

// Data lets read put up to limit bytes directly into the outgoing block. Fewer bytes are no error: the
// bytes that read returns become part of the content, and without any, nothing is written.
func (w *RoundWriter) Data(limit int64, read func(space []byte) (int, error)) (int, error) {
	const worth = 4 << 10 // less space than this is not worth a separate read
	if w.err != nil || limit <= 0 {
		return 0, w.err
	}
	space, err := w.Out.room(dataHeader + int(min(limit, worth)))
	if err != nil {
		w.err = err
		return 0, err
	}
	n, err := read(space[dataHeader : dataHeader+min(limit, int64(len(space)-dataHeader))])
	if n > 0 {
		space[0] = byte(OpData)
		binary.LittleEndian.PutUint32(space[1:], uint32(n))
		w.Out.commit(dataHeader + n)
		w.Content += uint64(n)
	}
	return n, err
}

// Bytes writes content that is in memory.
func (w *RoundWriter) Bytes(p []byte) error {
	for len(p) > 0 {
		n, err := w.Data(int64(len(p)), func(space []byte) (int, error) { return copy(space, p), nil })
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return w.err
}

// Op writes an operation on content.
func (w *RoundWriter) Op(op ContentOp, fields ...int64) error {
	w.Scratch = append(w.Scratch, byte(op))
	for _, field := range fields {
		w.Number(uint64(field))
	}
	return w.flush()
}

// Hole writes a hole.
func (w *RoundWriter) Hole(length int64) error { return w.Op(OpHole, length) }

// Keep keeps bytes as they are there already.
func (w *RoundWriter) Keep(length int64) error { return w.Op(OpKeep, length) }

// Copy copies bytes of the content before this change.
func (w *RoundWriter) Copy(from, length int64) error { return w.Op(OpCopy, from, length) }

// EndContent ends the content of a file.
func (w *RoundWriter) EndContent() error { return w.Op(OpEnd) }

// End completes the stream.
func (w *RoundWriter) End() error {
	w.Kind(RecordEnd)
	w.Number(w.trees)
	w.Number(w.Entries)
	w.Number(w.Content)
	if err := w.flush(); err != nil {
		return err
	}
	w.err = w.Out.Finish()
	return w.err
}
