package records

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/godwit/godwit/internal/files/fsys"
)

// RecordKind is the first byte of a record: round_writer.go explains the values.
type RecordKind byte

// Encoder writes records.
type Encoder struct {
	Out     *BlockWriter
	Scratch []byte
}

// Emit writes the record that was put together.
func (e *Encoder) Emit() error {
	_, err := e.Out.Write(e.Scratch)
	e.Scratch = e.Scratch[:0]
	return err
}

// Kind begins a record.
func (e *Encoder) Kind(kind RecordKind) { e.Scratch = append(e.Scratch, byte(kind)) }

// Number appends an integer.
func (e *Encoder) Number(n uint64) { e.Scratch = binary.AppendUvarint(e.Scratch, n) }
func (e *Encoder) signed(n int64)  { e.Scratch = binary.AppendVarint(e.Scratch, n) }

// Text appends a string after its length.
func (e *Encoder) Text(s string) {
	e.Number(uint64(len(s)))
	e.Scratch = append(e.Scratch,
		s...)
}
func (e *Encoder) timestamp(t fsys.Timestamp) { e.signed(t.Seconds); e.Number(uint64(t.Nanoseconds)) }

// Entry appends an entry.
func (e *Encoder) Entry(entry *fsys.Entry) {
	e.Text(entry.Name)
	e.Number(uint64(entry.Mode))
	e.Number(uint64(entry.UID))
	e.Number(uint64(entry.GID))
	e.Number(uint64(entry.Size))
	e.Number(uint64(entry.Stored))
	e.Number(entry.Device)
	e.Text(entry.Target)
	e.timestamp(entry.Accessed)
	e.timestamp(entry.Modified)
	e.Number(uint64(entry.Flags))
	e.Number(entry.Links)
	e.Number(uint64(len(entry.Xattrs)))
	for _, attribute := range entry.Xattrs {
		e.Text(attribute.Name)
		e.Text(string(attribute.Value))
	}
}

// Decoder reads fields of records. It keeps the first error, so that fields can be read one after the other
// and the error checked once.
type Decoder struct {
	In  *BlockReader
	Err error
}

// Fail notes the first error.
func (d *Decoder) Fail(format string, args ...any) {
	if d.Err == nil {
		d.Err = fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
	}
}

// Byte reads a byte.
func (d *Decoder) Byte() byte {
	if d.Err != nil {
		return 0
	}
	b, err := d.In.ReadByte()
	d.Err = err
	return b
}

// varint reads as encoding/binary does, but keeps errors of the stream apart from those of the number.
func (d *Decoder) varint(what string) uint64 {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		b := d.Byte()
		if d.Err != nil {
			return 0
		}
		if shift == 63 && b > 1 {
			break
		}
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return n
		}
	}
	d.Fail("%s is a number of more than 64 bits", what)
	return 0
}

// Number reads an integer, which must not exceed the limit.
func (d *Decoder) Number(limit uint64, what string) uint64 {
	n := d.varint(what)
	if d.Err == nil && n > limit {
		d.Fail("%s is %d, at most %d is allowed", what, n, limit)
		return 0
	}
	return n
}

func (d *Decoder) signed(what string) int64 {
	n := d.varint(what)
	return int64(n>>1) ^ -int64(n&1)
}

// Text reads a string in pieces, so that memory is allocated only for received bytes.
func (d *Decoder) Text(limit uint64, what string) string {
	length := int64(d.Number(limit, "the length of "+what))
	var s []byte
	for d.Err == nil && int64(len(s)) < length {
		piece, err := d.In.next(length - int64(len(s)))
		if err != nil {
			d.Err = err
			return ""
		}
		if int64(len(piece)) == length {
			return string(piece)
		}
		s = append(s, piece...)
	}
	return string(s)
}

func (d *Decoder) timestamp() fsys.Timestamp {
	return fsys.Timestamp{Seconds: d.signed("seconds"), Nanoseconds: uint32(d.Number(999_999_999,
		"nanoseconds"))}
}

func (d *Decoder) entry() fsys.Entry {
	e := fsys.Entry{
		Name:   d.Text(fsys.MaxName, "a file name"),
		Mode:   uint32(d.Number(math.MaxUint32, "a mode")),
		UID:    uint32(d.Number(math.MaxUint32, "an owner")),
		GID:    uint32(d.Number(math.MaxUint32, "a group")),
		Size:   int64(d.Number(math.MaxInt64, "a file size")),
		Stored: int64(d.Number(math.MaxInt64, "a stored size")),
		Device: d.Number(math.MaxUint32, "a device number"),
		Target: d.Text(fsys.MaxTarget, "a link's target"),

		Accessed: d.timestamp(),
		Modified: d.timestamp(),
		Flags:    uint32(d.Number(fsys.PortableFlags, "inode flags")),
		Links:    d.Number(math.MaxUint64, "an inode's number"),
	}
	e.Xattrs = d.xattrs()
	if d.Err == nil {
		if err := e.Validate(); err != nil {
			d.Fail("%q: %v", e.Name, err)
		}
	}
	return e
}

func (d *Decoder) xattrs() []fsys.Xattr {
	count := d.Number(fsys.MaxXattrs, "the number of extended attributes")
	var (
		list  []fsys.Xattr
		total int
	)
	for range count {
		x := fsys.Xattr{Name: d.Text(fsys.MaxXattrName, "an extended attribute's name")}
		x.Value = []byte(d.Text(fsys.MaxXattrValue, "an extended attribute"))
		if d.Err != nil {
			return nil
		}
		if err := fsys.ValidXattr(x.Name); err != nil {
			d.Fail("%v", err)
			return nil
		}
		if total += len(x.Name) + len(x.Value); total > fsys.MaxXattrBytes {
			d.Fail("extended attributes of more than %d bytes on one file", fsys.MaxXattrBytes)
			return nil
		}
		list = append(list, x)
	}
	return list
}

// Name reads a name that is about to be created in a directory.
func (d *Decoder) Name() string {
	name := d.Text(fsys.MaxName, "a file name")
	if d.Err == nil {
		if err := fsys.ValidName(name); err != nil {
			d.Fail("%v", err)
		}
	}
	return name
}

// DataHeader begins a data operation.
func (e *Encoder) DataHeader(length int) {
	e.Scratch = append(e.Scratch, byte(OpData), byte(length), byte(length>>8), byte(length>>16),
		byte(length>>24))
}
