package files

import (
	"encoding/binary"
	"fmt"
	"math"
)

// recordKind is the first byte of a record: round_writer.go explains the values.
type recordKind byte

// encoder writes records.
type encoder struct {
	out     *blockWriter
	scratch []byte
}

func (e *encoder) write() error {
	_, err := e.out.Write(e.scratch)
	e.scratch = e.scratch[:0]
	return err
}

func (e *encoder) kind(kind recordKind)  { e.scratch = append(e.scratch, byte(kind)) }
func (e *encoder) number(n uint64)       { e.scratch = binary.AppendUvarint(e.scratch, n) }
func (e *encoder) signed(n int64)        { e.scratch = binary.AppendVarint(e.scratch, n) }
func (e *encoder) text(s string)         { e.number(uint64(len(s))); e.scratch = append(e.scratch, s...) }
func (e *encoder) timestamp(t Timestamp) { e.signed(t.Seconds); e.number(uint64(t.Nanoseconds)) }

func (e *encoder) entry(entry *Entry) {
	e.text(entry.Name)
	e.number(uint64(entry.Mode))
	e.number(uint64(entry.UID))
	e.number(uint64(entry.GID))
	e.number(uint64(entry.Size))
	e.number(uint64(entry.Stored))
	e.number(entry.Device)
	e.text(entry.Target)
	e.timestamp(entry.Accessed)
	e.timestamp(entry.Modified)
	e.number(uint64(entry.Flags))
	e.number(entry.Links)
	e.number(uint64(len(entry.Xattrs)))
	for _, attribute := range entry.Xattrs {
		e.text(attribute.Name)
		e.text(string(attribute.Value))
	}
}

// decoder reads fields of records. It keeps the first error, so that fields can be read one after the other
// and the error checked once.
type decoder struct {
	in  *blockReader
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
	}
}

func (d *decoder) byte() byte {
	if d.err != nil {
		return 0
	}
	b, err := d.in.ReadByte()
	d.err = err
	return b
}

// varint reads as encoding/binary does, but keeps errors of the stream apart from those of the number.
func (d *decoder) varint(what string) uint64 {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		b := d.byte()
		if d.err != nil {
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
	d.fail("%s is a number of more than 64 bits", what)
	return 0
}

func (d *decoder) number(limit uint64, what string) uint64 {
	n := d.varint(what)
	if d.err == nil && n > limit {
		d.fail("%s is %d, at most %d is allowed", what, n, limit)
		return 0
	}
	return n
}

func (d *decoder) signed(what string) int64 {
	n := d.varint(what)
	return int64(n>>1) ^ -int64(n&1)
}

// text reads a string in pieces, so that memory is allocated only for received bytes.
func (d *decoder) text(limit uint64, what string) string {
	length := int64(d.number(limit, "the length of "+what))
	var s []byte
	for d.err == nil && int64(len(s)) < length {
		piece, err := d.in.next(length - int64(len(s)))
		if err != nil {
			d.err = err
			return ""
		}
		if int64(len(piece)) == length {
			return string(piece)
		}
		s = append(s, piece...)
	}
	return string(s)
}

func (d *decoder) timestamp() Timestamp {
	return Timestamp{Seconds: d.signed("seconds"), Nanoseconds: uint32(d.number(999_999_999, "nanoseconds"))}
}

func (d *decoder) entry() Entry {
	e := Entry{
		Name:   d.text(maxName, "a file name"),
		Mode:   uint32(d.number(math.MaxUint32, "a mode")),
		UID:    uint32(d.number(math.MaxUint32, "an owner")),
		GID:    uint32(d.number(math.MaxUint32, "a group")),
		Size:   int64(d.number(math.MaxInt64, "a file size")),
		Stored: int64(d.number(math.MaxInt64, "a stored size")),
		Device: d.number(math.MaxUint32, "a device number"),
		Target: d.text(maxTarget, "a link's target"),

		Accessed: d.timestamp(),
		Modified: d.timestamp(),
		Flags:    uint32(d.number(portableFlags, "inode flags")),
		Links:    d.number(math.MaxUint64, "an inode's number"),
	}
	e.Xattrs = d.xattrs()
	if d.err == nil {
		if err := e.validate(); err != nil {
			d.fail("%q: %v", e.Name, err)
		}
	}
	return e
}

func (d *decoder) xattrs() []Xattr {
	count := d.number(maxXattrs, "the number of extended attributes")
	var (
		list  []Xattr
		total int
	)
	for range count {
		x := Xattr{Name: d.text(maxXattrName, "an extended attribute's name")}
		x.Value = []byte(d.text(maxXattrValue, "an extended attribute"))
		if d.err != nil {
			return nil
		}
		if err := validXattr(x.Name); err != nil {
			d.fail("%v", err)
			return nil
		}
		if total += len(x.Name) + len(x.Value); total > maxXattrBytes {
			d.fail("extended attributes of more than %d bytes on one file", maxXattrBytes)
			return nil
		}
		list = append(list, x)
	}
	return list
}

// name reads a name that is about to be created in a directory.
func (d *decoder) name() string {
	name := d.text(maxName, "a file name")
	if d.err == nil {
		if err := validName(name); err != nil {
			d.fail("%v", err)
		}
	}
	return name
}

// dataHeader begins a data operation.
func (e *encoder) dataHeader(length int) {
	e.scratch = append(e.scratch, byte(opData), byte(length), byte(length>>8), byte(length>>16),
		byte(length>>24))
}
