package files

import (
	"encoding/binary"
	"io"
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
//	copy       from length         out of the content before this change; only if content says withCopies
const (
	recordRound recordKind = iota + 1
	recordTree
	recordDirectory
	recordEnter
	recordLeave
	recordUp
	recordOther
	recordChange
	recordRemove
	recordPark
	recordPlace
	recordPlaceDirectory
	recordLink
	recordForget
	recordEnd
)

// roundKind is the kind of a round.
type roundKind byte

const (
	liveRound  roundKind = iota // files may change while they are read
	finalRound                  // nothing changes any more
	lastRound                   // changes by the program that froze it; ends the copy
)

// contentKind says how the content of a regular file changes.
type contentKind byte

const (
	keepContent contentKind = iota // it stays, no operations follow
	inPlace                        // operations follow, without copies
	withCopies                     // operations follow; the previous content is needed until the end
)

type contentOp byte

const (
	opEnd contentOp = iota
	opData
	opHole
	opKeep
	opCopy
)

// dataHeader is the size of the header of a data operation.
const dataHeader = 1 + 4

// roundWriter writes a round. It counts for the closing record. It keeps the first error.
type roundWriter struct {
	encoder
	err     error
	trees   uint64
	entries uint64
	content uint64
}

// newRoundWriter begins a round. Progress, which may be nil, is called now and then with the number of
// bytes written to out.
func newRoundWriter(out io.Writer, number uint64, kind roundKind, progress func(sent int64)) (*roundWriter,
	error) {
	blocks, err := newBlockWriter(out, progress)
	if err != nil {
		return nil, err
	}
	w := &roundWriter{encoder: encoder{out: blocks}}
	w.kind(recordRound)
	w.number(number)
	w.scratch = append(w.scratch, byte(kind))
	return w, w.flush()
}

// newUnsent returns a writer of a round that nobody reads.
func newUnsent() *roundWriter {
	return &roundWriter{encoder: encoder{out: &blockWriter{out: io.Discard, digest: nowhere{},
		block: make([]byte, blockHeader, firstBlock)}}}
}

func (w *roundWriter) flush() error {
	if w.err == nil {
		w.err = w.write()
	}
	return w.err
}

func (w *roundWriter) named(kind recordKind, name string) error {
	w.kind(kind)
	w.text(name)
	return w.flush()
}

func (w *roundWriter) tree(kind TreeKind, name string) error {
	w.trees++
	w.kind(recordTree)
	w.text(string(kind))
	w.text(name)
	return w.flush()
}

func (w *roundWriter) directory(name string) error { return w.named(recordDirectory, name) }
func (w *roundWriter) enter(name string) error     { return w.named(recordEnter, name) }
func (w *roundWriter) remove(name string) error    { return w.named(recordRemove, name) }

func (w *roundWriter) leave(entry *Entry) error {
	w.entries++
	w.kind(recordLeave)
	w.entry(entry)
	return w.flush()
}

func (w *roundWriter) up() error {
	w.kind(recordUp)
	return w.flush()
}

// other is followed by operations if the entry is a regular file.
func (w *roundWriter) other(entry *Entry) error {
	w.entries++
	w.kind(recordOther)
	w.entry(entry)
	return w.flush()
}

// change is followed by operations unless the content stays.
func (w *roundWriter) change(entry *Entry, content contentKind) error {
	w.entries++
	w.kind(recordChange)
	w.entry(entry)
	w.scratch = append(w.scratch, byte(content))
	return w.flush()
}

func (w *roundWriter) park(name string, number uint64) error {
	w.kind(recordPark)
	w.text(name)
	w.number(number)
	return w.flush()
}

// place is followed by operations unless the content stays.
func (w *roundWriter) place(number uint64, entry *Entry, content contentKind) error {
	w.entries++
	w.kind(recordPlace)
	w.number(number)
	w.entry(entry)
	w.scratch = append(w.scratch, byte(content))
	return w.flush()
}

func (w *roundWriter) placeDirectory(number uint64, name string) error {
	w.kind(recordPlaceDirectory)
	w.number(number)
	w.text(name)
	return w.flush()
}

func (w *roundWriter) link(name string, number uint64) error {
	w.entries++
	w.kind(recordLink)
	w.text(name)
	w.number(number)
	return w.flush()
}

func (w *roundWriter) forget(number uint64) error {
	w.kind(recordForget)
	w.number(number)
	return w.flush()
}

// data lets read put up to limit bytes directly into the outgoing block. Fewer bytes are no error: the
// bytes that read returns become part of the content, and without any, nothing is written.
func (w *roundWriter) data(limit int64, read func(space []byte) (int, error)) (int, error) {
	const worth = 4 << 10 // less space than this is not worth a separate read
	if w.err != nil || limit <= 0 {
		return 0, w.err
	}
	space, err := w.out.room(dataHeader + int(min(limit, worth)))
	if err != nil {
		w.err = err
		return 0, err
	}
	n, err := read(space[dataHeader : dataHeader+min(limit, int64(len(space)-dataHeader))])
	if n > 0 {
		space[0] = byte(opData)
		binary.LittleEndian.PutUint32(space[1:], uint32(n))
		w.out.commit(dataHeader + n)
		w.content += uint64(n)
	}
	return n, err
}

// bytes writes content that is in memory.
func (w *roundWriter) bytes(p []byte) error {
	for len(p) > 0 {
		n, err := w.data(int64(len(p)), func(space []byte) (int, error) { return copy(space, p), nil })
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return w.err
}

func (w *roundWriter) op(op contentOp, fields ...int64) error {
	w.scratch = append(w.scratch, byte(op))
	for _, field := range fields {
		w.number(uint64(field))
	}
	return w.flush()
}

func (w *roundWriter) hole(length int64) error       { return w.op(opHole, length) }
func (w *roundWriter) keep(length int64) error       { return w.op(opKeep, length) }
func (w *roundWriter) copy(from, length int64) error { return w.op(opCopy, from, length) }
func (w *roundWriter) endContent() error             { return w.op(opEnd) }

// end completes the stream.
func (w *roundWriter) end() error {
	w.kind(recordEnd)
	w.number(w.trees)
	w.number(w.entries)
	w.number(w.content)
	if err := w.flush(); err != nil {
		return err
	}
	w.err = w.out.finish()
	return w.err
}
