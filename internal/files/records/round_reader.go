package records

import (
	"context"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
)

// Changes does what a round says, in its order. What arrives is valid in itself, and nested as it
// must be; whether it fits what is there, the sink finds out.
type Changes interface {
	Round(number uint64, kind RoundKind) error
	Tree(kind files.TreeKind, name string) error
	Directory(name string) error
	Enter(name string) error
	Leave(entry *fsys.Entry) error
	Up() error
	Other(entry *fsys.Entry) error
	Change(entry *fsys.Entry, content ContentKind) error
	Remove(name string) error
	Park(name string, number uint64) error
	Place(number uint64, entry *fsys.Entry, content ContentKind) error
	PlaceDirectory(number uint64, name string) error
	Link(name string, number uint64) error
	Forget(number uint64) error

	// The content of the regular file that came last, in order; done says that it was all.
	Data(offset int64, piece []byte) error
	Hole(offset, length int64) error
	Keep(offset, length int64) error
	Copy(offset, from, length int64) error
	Done(offset int64) error
}

// roundReader reads a round and refuses what breaks its rules.
type roundReader struct {
	Decoder
	ctx     context.Context
	sink    Changes
	kind    RoundKind
	depth   int
	trees   uint64
	entries uint64
	content uint64
}

// ReadRound reads exactly one round from r and has the sink do it.
func ReadRound(ctx context.Context, r io.Reader, sink Changes) (RoundKind, error) {
	in, err := NewBlockReader(r)
	if err != nil {
		return 0, err
	}
	defer in.Settle()
	d := &roundReader{Decoder: Decoder{In: in}, ctx: ctx, sink: sink}
	if err := d.head(); err != nil {
		return 0, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		kind := RecordKind(d.Byte())
		if d.Err != nil {
			return 0, d.Err
		}
		if kind == RecordEnd {
			return d.kind, d.end()
		}
		if err := d.record(kind); err != nil {
			return 0, err
		}
	}
}

func (d *roundReader) head() error {
	if RecordKind(d.Byte()) != RecordRound {
		d.Fail("it does not begin with a round")
	}
	number := d.Number(math.MaxUint32, "a round's number")
	d.kind = RoundKind(d.Byte())
	if d.kind > LastRound {
		d.Fail("unknown kind of round %d", d.kind)
	}
	if d.Err != nil {
		return d.Err
	}
	return d.sink.Round(number, d.kind)
}

func (d *roundReader) record(kind RecordKind) error {
	if inside := d.depth > 0; inside == (kind == recordTree) {
		return fmt.Errorf("%w: a record of kind %d stands where none may", ErrCorrupt, kind)
	}
	switch kind {
	case recordTree:
		return d.tree()
	case RecordDirectory, recordEnter:
		return d.into(kind)
	case recordPlaceDirectory:
		return d.placeDirectory()
	case recordLeave, recordUp:
		return d.out(kind)
	case RecordOther, RecordChange, RecordPlace:
		return d.file(kind)
	case RecordRemove:
		if name := d.Name(); d.Err == nil {
			return d.sink.Remove(name)
		}
		return d.Err
	case recordPark, recordLink, recordForget:
		return d.numbered(kind)
	default:
		return fmt.Errorf("%w: unknown record %d", ErrCorrupt, kind)
	}
}

func (d *roundReader) tree() error {
	kind, name := d.Text(fsys.MaxName, "a tree's kind"), d.Text(fsys.MaxName, "a tree's name")
	const most = 4 * fsys.MaxTrees // each may come more than once
	if d.trees++; d.trees > most {
		d.Fail("more than %d trees", most)
	}
	if d.Err != nil {
		return d.Err
	}
	d.depth = 1
	return d.sink.Tree(files.TreeKind(kind), name)
}

func (d *roundReader) deeper() {
	if d.depth++; d.depth > fsys.MaxDepth {
		d.Fail("directories are more than %d deep", fsys.MaxDepth)
	}
}

func (d *roundReader) into(kind RecordKind) error {
	name := d.Name()
	d.deeper()
	switch {
	case d.Err != nil:
		return d.Err
	case kind == recordEnter:
		return d.sink.Enter(name)
	default:
		return d.sink.Directory(name)
	}
}

func (d *roundReader) placeDirectory() error {
	number, name := d.inode(), d.Name()
	d.deeper()
	if d.Err != nil {
		return d.Err
	}
	return d.sink.PlaceDirectory(number, name)
}

func (d *roundReader) out(kind RecordKind) error {
	d.depth--
	if kind == recordUp {
		return d.sink.Up()
	}
	entry := d.entry()
	if d.Err == nil && entry.Type() != unix.S_IFDIR {
		d.Fail("the attributes of a directory are those of something else")
	}
	if d.Err != nil {
		return d.Err
	}
	d.entries++
	return d.sink.Leave(&entry)
}

// inode reads the number of an inode, or of something parked.
func (d *roundReader) inode() uint64 {
	number := d.Number(math.MaxUint64, "an inode's number")
	if d.Err == nil && number == 0 {
		d.Fail("an inode's number is 0")
	}
	return number
}

func (d *roundReader) numbered(kind RecordKind) error {
	var name string
	if kind != recordForget {
		name = d.Name()
	}
	number := d.inode()
	switch {
	case d.Err != nil:
		return d.Err
	case kind == recordPark:
		return d.sink.Park(name, number)
	case kind == recordForget:
		return d.sink.Forget(number)
	default:
		d.entries++
		return d.sink.Link(name, number)
	}
}

// file reads a record about anything but a directory, and the content that follows it.
func (d *roundReader) file(kind RecordKind) error {
	var number uint64
	if kind == RecordPlace {
		number = d.inode()
	}
	entry, content := d.entry(), InPlace
	if kind != RecordOther {
		content = ContentKind(d.Byte())
	}
	d.checkFile(&entry, content)
	if kind == RecordPlace && entry.Links != 0 && entry.Links != number {
		d.Fail("%q has two numbers, %d and %d", entry.Name, number, entry.Links)
	}
	if d.Err != nil {
		return d.Err
	}
	d.entries++
	if err := d.begin(kind, number, &entry, content); err != nil {
		return err
	}
	if entry.Type() != unix.S_IFREG || content == KeepContent {
		return nil
	}
	return d.operations(&entry, content)
}

func (d *roundReader) begin(kind RecordKind, number uint64, entry *fsys.Entry, content ContentKind) error {
	switch kind {
	case RecordPlace:
		return d.sink.Place(number, entry, content)
	case RecordChange:
		return d.sink.Change(entry, content)
	default:
		return d.sink.Other(entry)
	}
}

func (d *roundReader) checkFile(entry *fsys.Entry, content ContentKind) {
	if d.Err != nil {
		return
	}
	if err := fsys.ValidName(entry.Name); err != nil {
		d.Fail("%v", err)
	}
	if entry.Type() == unix.S_IFDIR {
		d.Fail("a directory comes where only other files may")
	}
	if content > WithCopies {
		d.Fail("unknown kind of content %d", content)
	}
}

// operations reads the content of a regular file.
func (d *roundReader) operations(entry *fsys.Entry, content ContentKind) error {
	for position := int64(0); ; {
		op := ContentOp(d.Byte())
		if d.Err == nil && op == OpEnd {
			return d.sink.Done(position)
		}
		length, err := d.operation(op, position, entry, content)
		if err != nil {
			return err
		}
		position += length
	}
}

// operation does one that has a length, and returns that.
func (d *roundReader) operation(op ContentOp, position int64, entry *fsys.Entry, content ContentKind) (int64,
	error) {
	var from int64
	if op == OpCopy {
		from = int64(d.Number(math.MaxInt64, "a position"))
	}
	length := d.length(op)
	switch {
	case d.Err != nil:
	case length > entry.Size-position:
		d.Fail("%q has content behind its end", entry.Name)
	case op == OpCopy && content != WithCopies:
		d.Fail("%q has a copy in its content that was not announced", entry.Name)
	case op == OpCopy && from > math.MaxInt64-length:
		d.Fail("%q copies from behind all ends", entry.Name)
	}
	if d.Err != nil {
		return 0, d.Err
	}
	switch op {
	case OpData:
		return length, d.run(position, length)
	case OpHole:
		return length, d.sink.Hole(position, length)
	case OpKeep:
		return length, d.sink.Keep(position, length)
	case OpCopy:
		return length, d.sink.Copy(position, from, length)
	default:
		return 0, fmt.Errorf("%w: unknown operation %d", ErrCorrupt, op)
	}
}

// length reads that of an operation. None is empty, so that a stream says something with every few bytes.
func (d *roundReader) length(op ContentOp) int64 {
	var length int64
	if op == OpData {
		for shift := 0; shift < 32; shift += 8 {
			length |= int64(d.Byte()) << shift
		}
	} else {
		length = int64(d.Number(math.MaxInt64, "a length"))
	}
	if d.Err == nil && length == 0 {
		d.Fail("an operation of length 0")
	}
	return length
}

func (d *roundReader) run(position, length int64) error {
	d.content += uint64(length)
	for length > 0 {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		piece, err := d.In.next(length)
		if err != nil {
			return err
		}
		if err := d.sink.Data(position, piece); err != nil {
			return err
		}
		position, length = position+int64(len(piece)), length-int64(len(piece))
	}
	return nil
}

// end compares what came with what the sender says it sent, and then the digest of all of it.
func (d *roundReader) end() error {
	if d.depth != 0 {
		d.Fail("it ends within a tree")
	}
	trees := d.Number(math.MaxUint64, "the number of trees")
	entries := d.Number(math.MaxUint64, "the number of entries")
	content := d.Number(math.MaxUint64, "the number of bytes")
	if d.Err == nil && (trees != d.trees || entries != d.entries || content != d.content) {
		d.Fail("%d trees, %d entries and %d bytes came, %d, %d and %d were sent", d.trees, d.entries,
			d.content, trees, entries, content)
	}
	if d.Err != nil {
		return d.Err
	}
	return d.In.End()
}
