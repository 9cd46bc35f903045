package compare

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/godwit/godwit/internal/files/manifest"
)

// deltaKind says how a name differs from what the mirror has.
type deltaKind byte

// The kinds of differences.
const (
	DeltaGone     deltaKind = iota // it is no more
	DeltaChanged                   // the same kind of file; what it has may be different
	DeltaReplaced                  // by another kind of file
	DeltaNew
)

// Delta is a name that must be looked at again, as a scan has found it.
type Delta struct {
	Kind  deltaKind
	Name  string
	Mode  byte // type of the file that is there, as unix.DT_*; nothing if it is gone
	Inode manifest.Inode
	Links uint64 // names of the inode
	Other bool   // it is another inode than the one that had the name
}

// First reports whether something is to be done for it before anything is made.
func (d *Delta) First() bool {
	return d.Kind == DeltaGone || d.Kind == DeltaReplaced || d.Kind == DeltaChanged &&
		(d.Links > 1 || d.Other)
}

// difference is what a scan has found in a part of a directory. A part in which nothing differs has none.
type difference struct {
	Frame  int64          // where the part is in the manifest
	Absent bool           // the directory could not be opened: it was moved or removed meanwhile
	Self   bool           // the directory itself is different, and this is its first part
	Stamp  manifest.Stamp // of the directory before it was listed
	Quiet  bool           // it was settled then
	Deltas []Delta
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
	p = le.AppendUint64(p, uint64(d.Frame))
	var marks byte
	if d.Absent {
		marks |= differenceAbsent
	}
	if d.Quiet {
		marks |= differenceQuiet
	}
	if d.Self {
		marks |= differenceSelf
	}
	p = append(p, marks)
	if d.Self {
		p = append(p, d.Stamp[:]...)
	}
	for i := range d.Deltas {
		c := &d.Deltas[i]
		p = append(p, byte(c.Kind), c.Mode, byte(len(c.Name)))
		p = append(p, c.Name...)
		if c.Kind != DeltaGone {
			p = le.AppendUint64(p, c.Inode.Device)
			p = le.AppendUint64(p, c.Inode.Number)
			p = le.AppendUint64(p, c.Links)
			if c.Other {
				p = append(p, 1)
			} else {
				p = append(p, 0)
			}
		}
	}
	le.PutUint32(p[begin:], uint32(len(p)-begin))
	return p
}

// DifferenceReader reads them one after the other.
type DifferenceReader struct {
	in   *manifest.SpoolReader
	Next difference
	Ok   bool // next is one
}

// Differences returns a reader of what the scan has found.
func (s *Scan) Differences() (*DifferenceReader, error) {
	r := &DifferenceReader{in: s.plan.Reader(0, s.plan.Size())}
	return r, r.Advance()
}

// Advance reads the following one into next.
func (r *DifferenceReader) Advance() error {
	head, err := r.in.Peek(4)
	if errors.Is(err, io.EOF) {
		r.Ok = false
		return nil
	}
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	p, err := r.in.Next(int(le.Uint32(head)))
	if err != nil {
		return err
	}
	r.Ok = true
	d := &r.Next
	*d = difference{Frame: int64(le.Uint64(p[4:])), Deltas: d.Deltas[:0]}
	marks, p := p[12], p[13:]
	d.Absent, d.Self, d.Quiet = marks&differenceAbsent != 0, marks&differenceSelf != 0,
		marks&differenceQuiet != 0
	if d.Self {
		p = p[copy(d.Stamp[:], p):]
	}
	for len(p) > 0 {
		n := 3 + int(p[2])
		c := Delta{Kind: deltaKind(p[0]), Mode: p[1], Name: string(p[3:n])}
		p = p[n:]
		if c.Kind != DeltaGone {
			c.Inode = manifest.Inode{Device: le.Uint64(p), Number: le.Uint64(p[8:])}
			c.Links, c.Other = le.Uint64(p[16:]), p[24] != 0
			p = p[25:]
		}
		d.Deltas = append(d.Deltas, c)
	}
	return nil
}
