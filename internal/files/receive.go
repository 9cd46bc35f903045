package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"
)

// Limits bound what a stream may write; zero means no limit.
type Limits struct {
	Bytes   int64 // of file content
	Entries int64
}

// Place says in which directory a tree belongs. The directory must be empty, or must not exist (then its parent must).
// It must refuse kinds and names that it does not expect: they come from the stream.
type Place func(kind TreeKind, name string) (string, error)

// ReceiveTrees makes the trees that SendTrees wrote to the other end of r, and reads no byte more than that. It
// succeeds only if the stream is whole, to its digest. Otherwise everything written is removed again.
//
// The stream is not trusted: no name in it leads out of the directory that place named, and no link is followed.
func ReceiveTrees(ctx context.Context, r io.Reader, place Place, limits Limits) error {
	in, err := newBlockReader(r)
	if err != nil {
		return err
	}
	b := &builder{place: place}
	defer b.close()
	d := &demand{decoder: decoder{in: in}, ctx: ctx, sink: b, limits: limits}
	err = d.stream()
	in.settle()
	if err != nil {
		return errors.Join(err, b.undo())
	}
	return nil
}

// sink does what a stream says, in its order. What arrives is valid in itself, and nested as it must be.
type sink interface {
	tree(kind TreeKind, name string) error
	directory(name string) error
	leave(entry *Entry) error
	other(entry *Entry) error
	// data gives a piece of the content of the regular file that came last, done says that it was all.
	data(offset int64, piece []byte) error
	done() error
	link(name string, number uint64, last bool) error
}

// demand reads a stream of trees and refuses what breaks its rules or its limits.
type demand struct {
	decoder
	ctx     context.Context
	sink    sink
	limits  Limits
	depth   int
	trees   uint64
	entries uint64
	content uint64
}

func (d *demand) stream() error {
	for {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		kind := recordKind(d.byte())
		if d.err != nil {
			return d.err
		}
		if kind == recordEnd {
			return d.end()
		}
		if err := d.record(kind); err != nil {
			return err
		}
	}
}

func (d *demand) record(kind recordKind) error {
	if inside := d.depth > 0; inside == (kind == recordTree) {
		return fmt.Errorf("%w: a record of kind %d stands where none may", ErrCorrupt, kind)
	}
	switch kind {
	case recordTree:
		return d.tree()
	case recordDirectory:
		return d.directory()
	case recordLeave:
		return d.leave()
	case recordOther:
		return d.other()
	case recordLink:
		return d.link()
	default:
		return fmt.Errorf("%w: unknown record %d", ErrCorrupt, kind)
	}
}

func (d *demand) tree() error {
	kind, name := d.text(maxName, "a tree's kind"), d.text(maxName, "a tree's name")
	if d.trees++; d.trees > maxTrees {
		d.fail("more than %d trees", maxTrees)
	}
	if d.err != nil {
		return d.err
	}
	d.depth = 1
	return d.sink.tree(TreeKind(kind), name)
}

func (d *demand) directory() error {
	name := d.name()
	if d.depth++; d.depth > maxDepth {
		d.fail("directories are more than %d deep", maxDepth)
	}
	if d.err != nil {
		return d.err
	}
	return d.sink.directory(name)
}

func (d *demand) leave() error {
	entry := d.entry()
	if d.err == nil && entry.Type() != unix.S_IFDIR {
		d.fail("the attributes of a directory are those of something else")
	}
	if err := d.count(); err != nil {
		return err
	}
	d.depth--
	return d.sink.leave(&entry)
}

func (d *demand) other() error {
	entry := d.entry()
	if d.err == nil {
		if err := validName(entry.Name); err != nil {
			d.fail("%v", err)
		}
		if entry.Type() == unix.S_IFDIR {
			d.fail("a directory comes where only other files may")
		}
	}
	if err := d.count(); err != nil {
		return err
	}
	if err := d.sink.other(&entry); err != nil || entry.Type() != unix.S_IFREG {
		return err
	}
	return d.runs(&entry)
}

func (d *demand) link() error {
	name := d.name()
	number := d.number(math.MaxUint64, "an inode's number")
	last := d.number(1, "a mark")
	if err := d.count(); err != nil {
		return err
	}
	return d.sink.link(name, number, last == 1)
}

func (d *demand) count() error {
	if d.err != nil {
		return d.err
	}
	if d.entries++; d.limits.Entries > 0 && d.entries > uint64(d.limits.Entries) {
		return fmt.Errorf("the file stream has more than the %d files that were agreed on", d.limits.Entries)
	}
	return nil
}

// runs reads the content of a regular file.
func (d *demand) runs(entry *Entry) error {
	for position := int64(0); ; {
		hole := d.number(math.MaxInt64, "a hole")
		length := d.number(math.MaxInt64, "a run")
		if left := uint64(entry.Size - position); hole > left || length > left-hole {
			d.fail("%q has content behind its end", entry.Name)
		}
		if d.err != nil {
			return d.err
		}
		if length == 0 {
			return d.sink.done()
		}
		position += int64(hole)
		if err := d.run(position, int64(length)); err != nil {
			return err
		}
		position += int64(length)
	}
}

func (d *demand) run(position, length int64) error {
	if d.content += uint64(length); d.limits.Bytes > 0 && d.content > uint64(d.limits.Bytes) {
		return fmt.Errorf("the file stream has more than the %d bytes that were agreed on", d.limits.Bytes)
	}
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
func (d *demand) end() error {
	if d.depth != 0 {
		d.fail("it ends within a tree")
	}
	trees := d.number(math.MaxUint64, "the number of trees")
	entries := d.number(math.MaxUint64, "the number of entries")
	content := d.number(math.MaxUint64, "the number of bytes")
	if d.err == nil && (trees != d.trees || entries != d.entries || content != d.content) {
		d.fail("%d trees, %d entries and %d bytes came, %d, %d and %d were sent", d.trees, d.entries, d.content, trees, entries, content)
	}
	if d.err != nil {
		return d.err
	}
	return d.in.end()
}
