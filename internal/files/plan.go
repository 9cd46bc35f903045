package files

import (
	"encoding/binary"
	"errors"
	"io"
)

// deltaKind says how a name differs from what the mirror has.
type deltaKind byte

const (
	deltaGone     deltaKind = iota // it is no more
	deltaChanged                   // the same kind of file; what it has may be different
	deltaReplaced                  // by another kind of file
	deltaNew
)

// delta is a name that must be looked at again, as a scan has found it.
type delta struct {
	kind  deltaKind
	name  string
	mode  byte // type of the file that is there, as unix.DT_*; nothing if it is gone
	inode inode
	links uint64 // names of the inode
	other bool   // it is another inode than the one that had the name
}

// first reports whether something is to be done for it before anything is made.
func (d *delta) first() bool {
	return d.kind == deltaGone || d.kind == deltaReplaced || d.kind == deltaChanged &&
		(d.links > 1 || d.other)
}

// difference is what a scan has found in a part of a directory. A part in which nothing differs has none.
type difference struct {
	frame  int64 // where the part is in the manifest
	absent bool  // the directory could not be opened: it was moved or removed meanwhile
	self   bool  // the directory itself is different, and this is its first part
	stamp  stamp // of the directory before it was listed
	quiet  bool  // it was settled then
	deltas []delta
}

const (
	differenceAbsent = 1
	differenceSelf   = 2
	differenceQuiet  = 4
)

// differences are kept on disk, in the order of the manifest: there may be as many as there are files.

func (d *difference) appendTo(p []byte) []byte {
	begin := len(p)
	le := binary.LittleEndian
	p = append(p, 0, 0, 0, 0)
	p = le.AppendUint64(p, uint64(d.frame))
	var marks byte
	if d.absent {
		marks |= differenceAbsent
	}
	if d.quiet {
		marks |= differenceQuiet
	}
	if d.self {
		marks |= differenceSelf
	}
	p = append(p, marks)
	if d.self {
		p = append(p, d.stamp[:]...)
	}
	for i := range d.deltas {
		c := &d.deltas[i]
		p = append(p, byte(c.kind), c.mode, byte(len(c.name)))
		p = append(p, c.name...)
		if c.kind != deltaGone {
			p = le.AppendUint64(p, c.inode.device)
			p = le.AppendUint64(p, c.inode.number)
			p = le.AppendUint64(p, c.links)
			if c.other {
				p = append(p, 1)
			} else {
				p = append(p, 0)
			}
		}
	}
	le.PutUint32(p[begin:], uint32(len(p)-begin))
	return p
}

// differenceReader reads them one after the other.
type differenceReader struct {
	in   *spoolReader
	next difference
	ok   bool // next is one
}

func (s *scan) differences() (*differenceReader, error) {
	r := &differenceReader{in: s.plan.reader(0, s.plan.size())}
	return r, r.advance()
}

// advance reads the following one into next.
func (r *differenceReader) advance() error {
	head, err := r.in.peek(4)
	if errors.Is(err, io.EOF) {
		r.ok = false
		return nil
	}
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	p, err := r.in.next(int(le.Uint32(head)))
	if err != nil {
		return err
	}
	r.ok = true
	d := &r.next
	*d = difference{frame: int64(le.Uint64(p[4:])), deltas: d.deltas[:0]}
	marks, p := p[12], p[13:]
	d.absent, d.self, d.quiet = marks&differenceAbsent != 0, marks&differenceSelf != 0,
		marks&differenceQuiet != 0
	if d.self {
		p = p[copy(d.stamp[:], p):]
	}
	for len(p) > 0 {
		n := 3 + int(p[2])
		c := delta{kind: deltaKind(p[0]), mode: p[1], name: string(p[3:n])}
		p = p[n:]
		if c.kind != deltaGone {
			c.inode = inode{le.Uint64(p), le.Uint64(p[8:])}
			c.links, c.other = le.Uint64(p[16:]), p[24] != 0
			p = p[25:]
		}
		d.deltas = append(d.deltas, c)
	}
	return nil
}
