package files

import (
	"context"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"
)

// roundSink does what a round says, in its order. What arrives is valid in itself, and nested as it
// must be; whether it fits what is there, the sink finds out.
type roundSink interface {
	round(number uint64, kind roundKind) error
	tree(kind TreeKind, name string) error
	directory(name string) error
	enter(name string) error
	leave(entry *Entry) error
	up() error
	other(entry *Entry) error
	change(entry *Entry, content contentKind) error
	remove(name string) error
	park(name string, number uint64) error
	place(number uint64, entry *Entry, content contentKind) error
	placeDirectory(number uint64, name string) error
	link(name string, number uint64) error
	forget(number uint64) error

	// The content of the regular file that came last, in order; done says that it was all.
	data(offset int64, piece []byte) error
	hole(offset, length int64) error
	keep(offset, length int64) error
	copy(offset, from, length int64) error
	done(offset int64) error
}

// roundReader reads a round and refuses what breaks its rules.
type roundReader struct {
	decoder
	ctx     context.Context
	sink    roundSink
	kind    roundKind
	depth   int
	trees   uint64
	entries uint64
	content uint64
}

// readRound reads exactly one round from r and has the sink do it.
func readRound(ctx context.Context, r io.Reader, sink roundSink) (roundKind, error) {
	in, err := newBlockReader(r)
	if err != nil {
		return 0, err
	}
	defer in.settle()
	d := &roundReader{decoder: decoder{in: in}, ctx: ctx, sink: sink}
	if err := d.head(); err != nil {
		return 0, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		kind := recordKind(d.byte())
		if d.err != nil {
			return 0, d.err
		}
		if kind == recordEnd {
			return d.kind, d.end()
		}
		if err := d.record(kind); err != nil {
			return 0, err
		}
	}
}

func (d *roundReader) head() error {
	if recordKind(d.byte()) != recordRound {
		d.fail("it does not begin with a round")
	}
	number := d.number(math.MaxUint32, "a round's number")
	d.kind = roundKind(d.byte())
	if d.kind > lastRound {
		d.fail("unknown kind of round %d", d.kind)
	}
	if d.err != nil {
		return d.err
	}
	return d.sink.round(number, d.kind)
}

func (d *roundReader) record(kind recordKind) error {
	if inside := d.depth > 0; inside == (kind == recordTree) {
		return fmt.Errorf("%w: a record of kind %d stands where none may", ErrCorrupt, kind)
	}
	switch kind {
	case recordTree:
		return d.tree()
	case recordDirectory, recordEnter:
		return d.into(kind)
	case recordPlaceDirectory:
		return d.placeDirectory()
	case recordLeave, recordUp:
		return d.out(kind)
	case recordOther, recordChange, recordPlace:
		return d.file(kind)
	case recordRemove:
		if name := d.name(); d.err == nil {
			return d.sink.remove(name)
		}
		return d.err
	case recordPark, recordLink, recordForget:
		return d.numbered(kind)
	default:
		return fmt.Errorf("%w: unknown record %d", ErrCorrupt, kind)
	}
}

func (d *roundReader) tree() error {
	kind, name := d.text(maxName, "a tree's kind"), d.text(maxName, "a tree's name")
	const most = 4 * maxTrees // each may come more than once
	if d.trees++; d.trees > most {
		d.fail("more than %d trees", most)
	}
	if d.err != nil {
		return d.err
	}
	d.depth = 1
	return d.sink.tree(TreeKind(kind), name)
}

func (d *roundReader) deeper() {
	if d.depth++; d.depth > maxDepth {
		d.fail("directories are more than %d deep", maxDepth)
	}
}

func (d *roundReader) into(kind recordKind) error {
	name := d.name()
	d.deeper()
	switch {
	case d.err != nil:
		return d.err
	case kind == recordEnter:
		return d.sink.enter(name)
	default:
		return d.sink.directory(name)
	}
}

func (d *roundReader) placeDirectory() error {
	number, name := d.inode(), d.name()
	d.deeper()
	if d.err != nil {
		return d.err
	}
	return d.sink.placeDirectory(number, name)
}

func (d *roundReader) out(kind recordKind) error {
	d.depth--
	if kind == recordUp {
		return d.sink.up()
	}
	entry := d.entry()
	if d.err == nil && entry.Type() != unix.S_IFDIR {
		d.fail("the attributes of a directory are those of something else")
	}
	if d.err != nil {
		return d.err
	}
	d.entries++
	return d.sink.leave(&entry)
}

// inode reads the number of an inode, or of something parked.
func (d *roundReader) inode() uint64 {
	number := d.number(math.MaxUint64, "an inode's number")
	if d.err == nil && number == 0 {
		d.fail("an inode's number is 0")
	}
	return number
}

func (d *roundReader) numbered(kind recordKind) error {
	var name string
	if kind != recordForget {
		name = d.name()
	}
	number := d.inode()
	switch {
	case d.err != nil:
		return d.err
	case kind == recordPark:
		return d.sink.park(name, number)
	case kind == recordForget:
		return d.sink.forget(number)
	default:
		d.entries++
		return d.sink.link(name, number)
	}
}

// file reads a record about anything but a directory, and the content that follows it.
func (d *roundReader) file(kind recordKind) error {
	var number uint64
	if kind == recordPlace {
		number = d.inode()
	}
	entry, content := d.entry(), inPlace
	if kind != recordOther {
		content = contentKind(d.byte())
	}
	d.checkFile(&entry, content)
	if kind == recordPlace && entry.Links != 0 && entry.Links != number {
		d.fail("%q has two numbers, %d and %d", entry.Name, number, entry.Links)
	}
	if d.err != nil {
		return d.err
	}
	d.entries++
	if err := d.begin(kind, number, &entry, content); err != nil {
		return err
	}
	if entry.Type() != unix.S_IFREG || content == keepContent {
		return nil
	}
	return d.operations(&entry, content)
}

func (d *roundReader) begin(kind recordKind, number uint64, entry *Entry, content contentKind) error {
	switch kind {
	case recordPlace:
		return d.sink.place(number, entry, content)
	case recordChange:
		return d.sink.change(entry, content)
	default:
		return d.sink.other(entry)
	}
}

func (d *roundReader) checkFile(entry *Entry, content contentKind) {
	if d.err != nil {
		return
	}
	if err := validName(entry.Name); err != nil {
		d.fail("%v", err)
	}
	if entry.Type() == unix.S_IFDIR {
		d.fail("a directory comes where only other files may")
	}
	if content > withCopies {
		d.fail("unknown kind of content %d", content)
	}
}

// operations reads the content of a regular file.
func (d *roundReader) operations(entry *Entry, content contentKind) error {
	for position := int64(0); ; {
		op := contentOp(d.byte())
		if d.err == nil && op == opEnd {
			return d.sink.done(position)
		}
		length, err := d.operation(op, position, entry, content)
		if err != nil {
			return err
		}
		position += length
	}
}

// operation does one that has a length, and returns that.
func (d *roundReader) operation(op contentOp, position int64, entry *Entry, content contentKind) (int64,
	error) {
	var from int64
	if op == opCopy {
		from = int64(d.number(math.MaxInt64, "a position"))
	}
	length := d.length(op)
	switch {
	case d.err != nil:
	case length > entry.Size-position:
		d.fail("%q has content behind its end", entry.Name)
	case op == opCopy && content != withCopies:
		d.fail("%q has a copy in its content that was not announced", entry.Name)
	case op == opCopy && from > math.MaxInt64-length:
		d.fail("%q copies from behind all ends", entry.Name)
	}
	if d.err != nil {
		return 0, d.err
	}
	switch op {
	case opData:
		return length, d.run(position, length)
	case opHole:
		return length, d.sink.hole(position, length)
	case opKeep:
		return length, d.sink.keep(position, length)
	case opCopy:
		return length, d.sink.copy(position, from, length)
	default:
		return 0, fmt.Errorf("%w: unknown operation %d", ErrCorrupt, op)
	}
}

// length reads that of an operation. None is empty, so that a stream says something with every few bytes.
func (d *roundReader) length(op contentOp) int64 {
	var length int64
	if op == opData {
		for shift := 0; shift < 32; shift += 8 {
			length |= int64(d.byte()) << shift
		}
	} else {
		length = int64(d.number(math.MaxInt64, "a length"))
	}
	if d.err == nil && length == 0 {
		d.fail("an operation of length 0")
	}
	return length
}

func (d *roundReader) run(position, length int64) error {
	d.content += uint64(length)
	for length > 0 {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		piece, err := d.in.next(length)
		if err != nil {
			return err
		}
		if err := d.sink.data(position, piece); err != nil {
			return err
		}
		position, length = position+int64(len(piece)), length-int64(len(piece))
	}
	return nil
}

// end compares what came with what the sender says it sent, and then the digest of all of it.
func (d *roundReader) end() error {
	if d.depth != 0 {
		d.fail("it ends within a tree")
	}
	trees := d.number(math.MaxUint64, "the number of trees")
	entries := d.number(math.MaxUint64, "the number of entries")
	content := d.number(math.MaxUint64, "the number of bytes")
	if d.err == nil && (trees != d.trees || entries != d.entries || content != d.content) {
		d.fail("%d trees, %d entries and %d bytes came, %d, %d and %d were sent", d.trees, d.entries,
			d.content, trees, entries, content)
	}
	if d.err != nil {
		return d.err
	}
	return d.in.end()
}
