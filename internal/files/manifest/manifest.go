package manifest

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/chunk"
)

// Frame is a part of a manifest. A manifest says what the mirror of a tree has, and how the source looked
// when that was read. It is on disk: a sequence of frames, each a part of one directory with names in
// ascending order.
// Directories come before what is in them; so depth and name of a frame tell its path. Everything
// below a directory is one piece of the manifest.
type Frame struct {
	Offset  int64 // in the manifest
	Length  int64
	Depth   int // 0: the tree's root
	First   bool
	Last    bool // of this directory
	Name    string
	Self    Self // of the directory; in its first frame
	Entries []byte
}

// Self is what is known of a directory itself.
type Self struct {
	Stamp   Stamp
	Settled bool
	Attrs   chunk.Digest
}

const (
	frameHead = 4 + 1 + 4 + 1 // length, marks, depth, length of the name
	selfSize  = stampSize + 16

	frameFirst   = 1
	frameLast    = 2
	frameSettled = 4

	// frameFull is where a frame ends. One more entry fits always.
	frameFull = 48 << 10
)

// Stamp is what stat says about an inode, as far as it reports whether something has changed.
type Stamp [stampSize]byte

const stampSize = 8 + 8 + 4 + 4 + 4 + 8 + 8 + 3*12

// Where a stamp has its parts.
const (
	stampDevice = 0
	stampInode  = 8
	StampMode   = 16
	stampLinks  = 28
	StampLength = 36
	stampAccess = stampSize - 12
)

// StampOf returns the stamp of an inode.
func StampOf(stat *unix.Stat_t) (s Stamp) {
	le := binary.LittleEndian
	le.PutUint64(s[stampDevice:], stat.Dev)
	le.PutUint64(s[stampInode:], stat.Ino)
	le.PutUint32(s[StampMode:], stat.Mode)
	le.PutUint32(s[20:], stat.Uid)
	le.PutUint32(s[24:], stat.Gid)
	le.PutUint64(s[stampLinks:], uint64(stat.Nlink))
	length := uint64(stat.Size)
	if kind := stat.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		length = stat.Rdev
	}
	le.PutUint64(s[StampLength:], length)
	for i, t := range []unix.Timespec{stat.Mtim, stat.Ctim, stat.Atim} {
		le.PutUint64(s[44+12*i:], uint64(t.Sec))
		le.PutUint32(s[52+12*i:], uint32(t.Nsec))
	}
	return s
}

// Inode returns which inode it is.
func (s *Stamp) Inode() Inode {
	return Inode{binary.LittleEndian.Uint64(s[stampDevice:]), binary.LittleEndian.Uint64(s[stampInode:])}
}

// Kind returns the file's type.
func (s *Stamp) Kind() uint32 { return binary.LittleEndian.Uint32(s[StampMode:]) & unix.S_IFMT }

// Size returns the file's size.
func (s *Stamp) Size() int64 { return int64(binary.LittleEndian.Uint64(s[StampLength:])) }

// SameBut reports whether nothing but the access time is different.
func (s *Stamp) SameBut(other *Stamp) bool {
	return string(s[:stampAccess]) == string(other[:stampAccess])
}

// ContentForm says what is known of the content of a regular file.
type ContentForm byte

// The forms of content.
const (
	ContentUnknown ContentForm = iota // it must be sent whole
	ContentDigest                     // digest of it as operations
	ContentList                       // list of chunks in the spool of lists
)

// Content is what is known of a regular file's content at the mirror.
type Content struct {
	Form   ContentForm
	Digest chunk.Digest
	Offset int64  // of the list
	Count  uint32 // of chunks in it
}

// Known is one name, as the mirror has it.
type Known struct {
	Name      string
	Directory bool // then there is no more here: it has frames of its own
	Settled   bool
	Stamp     Stamp
	Attrs     chunk.Digest // of the entry that the mirror was given
	Links     uint64       // the inode's number, if it has several names
	Content   Content
}

const (
	knownDirectory = 1
	knownSettled   = 2
	knownLinks     = 4
	knownFormShift = 3
)

// appendTo adds the record to a frame.
func (k *Known) appendTo(p []byte) []byte {
	marks := byte(k.Content.Form) << knownFormShift
	if k.Directory {
		marks |= knownDirectory
	}
	if k.Settled {
		marks |= knownSettled
	}
	if k.Links != 0 {
		marks |= knownLinks
	}
	p = append(p, byte(len(k.Name)))
	p = append(p, k.Name...)
	p = append(p, marks)
	if k.Directory {
		return p
	}
	p = append(p, k.Stamp[:]...)
	p = append(p, k.Attrs[:]...)
	le := binary.LittleEndian
	if k.Links != 0 {
		p = le.AppendUint64(p, k.Links)
	}
	switch k.Content.Form {
	case ContentDigest:
		p = append(p, k.Content.Digest[:]...)
	case ContentList:
		p = le.AppendUint64(p, uint64(k.Content.Offset))
		p = le.AppendUint32(p, k.Content.Count)
	}
	return p
}

// KnownReader reads the records of a frame.
type KnownReader struct{ Unread []byte }

// Next returns a record, and the same as it stands in the frame; false at the end. It panics on
// what appendTo cannot have written: nobody else writes manifests.
func (r *KnownReader) Next(k *Known) (raw []byte, ok bool) {
	if len(r.Unread) == 0 {
		return nil, false
	}
	begin := r.Unread
	n := int(begin[0])
	k.Name = string(begin[1 : 1+n])
	marks := begin[1+n]
	p := begin[2+n:]
	k.Directory, k.Settled, k.Links = marks&knownDirectory != 0, marks&knownSettled != 0, 0
	k.Content = Content{Form: ContentForm(marks >> knownFormShift)}
	if !k.Directory {
		p = p[copy(k.Stamp[:], p):]
		p = p[copy(k.Attrs[:], p):]
		le := binary.LittleEndian
		if marks&knownLinks != 0 {
			k.Links, p = le.Uint64(p), p[8:]
		}
		switch k.Content.Form {
		case ContentDigest:
			p = p[copy(k.Content.Digest[:], p):]
		case ContentList:
			k.Content.Offset, k.Content.Count, p = int64(le.Uint64(p)), le.Uint32(p[8:]), p[12:]
		}
	}
	r.Unread = p
	return begin[:len(begin)-len(p)], true
}

// Frames reads a manifest.
type Frames struct{ In *SpoolReader }

// Frames reads a spool as a manifest.
func (s *Spool) Frames() *Frames { return &Frames{s.Reader(0, s.Size())} }

// Next reads a frame, or returns io.EOF. Its entries are valid until the following call.
func (r *Frames) Next(f *Frame) error {
	f.Offset = r.In.position
	head, err := r.In.Peek(4)
	if err != nil {
		return err
	}
	f.Length = int64(binary.LittleEndian.Uint32(head))
	p, err := r.In.Next(int(f.Length))
	if err != nil {
		return err
	}
	marks, n := p[4], int(p[9])
	f.First, f.Last = marks&frameFirst != 0, marks&frameLast != 0
	f.Depth = int(binary.LittleEndian.Uint32(p[5:]))
	f.Name, p = string(p[frameHead:frameHead+n]), p[frameHead+n:]
	f.Self = Self{}
	if f.First {
		f.Self.Settled = marks&frameSettled != 0
		p = p[copy(f.Self.Stamp[:], p):]
		p = p[copy(f.Self.Attrs[:], p):]
	}
	f.Entries = p
	return nil
}

// FrameWriter writes frames of one directory after the other.
type FrameWriter struct {
	Out     *Spool
	buffer  []byte
	copied  []byte // for what is taken over
	head    int    // where the entries begin
	depth   int
	name    string
	pending Frame // first, last, self of what comes
}

// Begin starts a part of a directory, which ends when end is called: one frame, or more if it is long.
func (w *FrameWriter) Begin(f *Frame) {
	w.depth, w.name, w.pending = f.Depth, f.Name, Frame{First: f.First, Last: f.Last, Self: f.Self}
	w.start()
}

func (w *FrameWriter) start() {
	w.buffer = append(w.buffer[:0], make([]byte, frameHead)...)
	binary.LittleEndian.PutUint32(w.buffer[5:], uint32(w.depth))
	w.buffer[9] = byte(len(w.name))
	w.buffer = append(w.buffer, w.name...)
	if w.pending.First {
		w.buffer = append(w.buffer, w.pending.Self.Stamp[:]...)
		w.buffer = append(w.buffer, w.pending.Self.Attrs[:]...)
	}
	w.head = len(w.buffer)
}

// Raw adds a record as it stands in another frame.
func (w *FrameWriter) Raw(record []byte) error {
	w.buffer = append(w.buffer, record...)
	return w.cut()
}

// Add adds a name.
func (w *FrameWriter) Add(k *Known) error {
	w.buffer = k.appendTo(w.buffer)
	return w.cut()
}

// cut ends a frame that is full. One that ends here may be followed by an empty one, which is no harm.
func (w *FrameWriter) cut() error {
	if len(w.buffer) < frameFull {
		return nil
	}
	if err := w.write(false); err != nil {
		return err
	}
	w.pending.First = false
	w.start()
	return nil
}

// End ends the directory.
func (w *FrameWriter) End() error { return w.write(w.pending.Last) }

func (w *FrameWriter) write(last bool) error {
	binary.LittleEndian.PutUint32(w.buffer, uint32(len(w.buffer)))
	if w.pending.First {
		w.buffer[4] |= frameFirst
		if w.pending.Self.Settled {
			w.buffer[4] |= frameSettled
		}
	}
	if last {
		w.buffer[4] |= frameLast
	}
	if _, err := w.Out.Append(w.buffer); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return nil
}

// Verbatim takes over a piece of another manifest.
func (w *FrameWriter) Verbatim(from *Spool, start, end int64) error {
	const piece = 128 << 10
	if int64(len(w.copied)) < min(piece, end-start) {
		w.copied = make([]byte, min(piece, end-start))
	}
	for start < end {
		p := w.copied[:min(int64(len(w.copied)), end-start)]
		if err := from.ReadAt(p, start); err != nil {
			return err
		}
		if _, err := w.Out.Append(p); err != nil {
			return fmt.Errorf("write the manifest: %w", err)
		}
		start += int64(len(p))
	}
	return nil
}

// Adopted reports whether a file is from an earlier copy: no file of the source is known to be the same.
func (k *Known) Adopted() bool { return k.Stamp.Inode() == Inode{} }
