package files

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/chunk"
)

// A manifest says what the mirror of a tree has, and how the source looked when that was read. It
// is on disk: a sequence of frames, each a part of one directory with names in ascending order.
// Directories come before what is in them; so depth and name of a frame tell its path. Everything
// below a directory is one piece of the manifest.
type frame struct {
	offset  int64 // in the manifest
	length  int64
	depth   int // 0: the tree's root
	first   bool
	last    bool // of this directory
	name    string
	self    self // of the directory; in its first frame
	entries []byte
}

// self is what is known of a directory itself.
type self struct {
	stamp   stamp
	settled bool
	attrs   chunk.Digest
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

// stamp is what stat says about an inode, as far as it reports whether something has changed.
type stamp [stampSize]byte

const stampSize = 8 + 8 + 4 + 4 + 4 + 8 + 8 + 3*12

const (
	stampDevice = 0
	stampInode  = 8
	stampMode   = 16
	stampLinks  = 28
	stampLength = 36
	stampAccess = stampSize - 12
)

func stampOf(stat *unix.Stat_t) (s stamp) {
	le := binary.LittleEndian
	le.PutUint64(s[stampDevice:], stat.Dev)
	le.PutUint64(s[stampInode:], stat.Ino)
	le.PutUint32(s[stampMode:], stat.Mode)
	le.PutUint32(s[20:], stat.Uid)
	le.PutUint32(s[24:], stat.Gid)
	le.PutUint64(s[stampLinks:], uint64(stat.Nlink))
	length := uint64(stat.Size)
	if kind := stat.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		length = stat.Rdev
	}
	le.PutUint64(s[stampLength:], length)
	for i, t := range []unix.Timespec{stat.Mtim, stat.Ctim, stat.Atim} {
		le.PutUint64(s[44+12*i:], uint64(t.Sec))
		le.PutUint32(s[52+12*i:], uint32(t.Nsec))
	}
	return s
}

func (s *stamp) inode() inode {
	return inode{binary.LittleEndian.Uint64(s[stampDevice:]), binary.LittleEndian.Uint64(s[stampInode:])}
}
func (s *stamp) kind() uint32 { return binary.LittleEndian.Uint32(s[stampMode:]) & unix.S_IFMT }
func (s *stamp) size() int64  { return int64(binary.LittleEndian.Uint64(s[stampLength:])) }

// sameBut reports whether nothing but the access time is different.
func (s *stamp) sameBut(other *stamp) bool {
	return string(s[:stampAccess]) == string(other[:stampAccess])
}

// contentForm says what is known of the content of a regular file.
type contentForm byte

const (
	contentUnknown contentForm = iota // it must be sent whole
	contentDigest                     // digest of it as operations
	contentList                       // list of chunks in the spool of lists
)

// content is what is known of a regular file's content at the mirror.
type content struct {
	form   contentForm
	digest chunk.Digest
	offset int64  // of the list
	count  uint32 // of chunks in it
}

// known is one name, as the mirror has it.
type known struct {
	name      string
	directory bool // then there is no more here: it has frames of its own
	settled   bool
	stamp     stamp
	attrs     chunk.Digest // of the entry that the mirror was given
	links     uint64       // the inode's number, if it has several names
	content   content
}

const (
	knownDirectory = 1
	knownSettled   = 2
	knownLinks     = 4
	knownFormShift = 3
)

// appendTo adds the record to a frame.
func (k *known) appendTo(p []byte) []byte {
	marks := byte(k.content.form) << knownFormShift
	if k.directory {
		marks |= knownDirectory
	}
	if k.settled {
		marks |= knownSettled
	}
	if k.links != 0 {
		marks |= knownLinks
	}
	p = append(p, byte(len(k.name)))
	p = append(p, k.name...)
	p = append(p, marks)
	if k.directory {
		return p
	}
	p = append(p, k.stamp[:]...)
	p = append(p, k.attrs[:]...)
	le := binary.LittleEndian
	if k.links != 0 {
		p = le.AppendUint64(p, k.links)
	}
	switch k.content.form {
	case contentDigest:
		p = append(p, k.content.digest[:]...)
	case contentList:
		p = le.AppendUint64(p, uint64(k.content.offset))
		p = le.AppendUint32(p, k.content.count)
	}
	return p
}

// knownReader reads the records of a frame.
type knownReader struct{ unread []byte }

// next returns a record, and the same as it stands in the frame; false at the end. It panics on
// what appendTo cannot have written: nobody else writes manifests.
func (r *knownReader) next(k *known) (raw []byte, ok bool) {
	if len(r.unread) == 0 {
		return nil, false
	}
	begin := r.unread
	n := int(begin[0])
	k.name = string(begin[1 : 1+n])
	marks := begin[1+n]
	p := begin[2+n:]
	k.directory, k.settled, k.links = marks&knownDirectory != 0, marks&knownSettled != 0, 0
	k.content = content{form: contentForm(marks >> knownFormShift)}
	if !k.directory {
		p = p[copy(k.stamp[:], p):]
		p = p[copy(k.attrs[:], p):]
		le := binary.LittleEndian
		if marks&knownLinks != 0 {
			k.links, p = le.Uint64(p), p[8:]
		}
		switch k.content.form {
		case contentDigest:
			p = p[copy(k.content.digest[:], p):]
		case contentList:
			k.content.offset, k.content.count, p = int64(le.Uint64(p)), le.Uint32(p[8:]), p[12:]
		}
	}
	r.unread = p
	return begin[:len(begin)-len(p)], true
}

// frames reads a manifest.
type frames struct{ in *spoolReader }

func (s *spool) frames() *frames { return &frames{s.reader(0, s.size())} }

// next reads a frame, or returns io.EOF. Its entries are valid until the following call.
func (r *frames) next(f *frame) error {
	f.offset = r.in.position
	head, err := r.in.peek(4)
	if err != nil {
		return err
	}
	f.length = int64(binary.LittleEndian.Uint32(head))
	p, err := r.in.next(int(f.length))
	if err != nil {
		return err
	}
	marks, n := p[4], int(p[9])
	f.first, f.last = marks&frameFirst != 0, marks&frameLast != 0
	f.depth = int(binary.LittleEndian.Uint32(p[5:]))
	f.name, p = string(p[frameHead:frameHead+n]), p[frameHead+n:]
	f.self = self{}
	if f.first {
		f.self.settled = marks&frameSettled != 0
		p = p[copy(f.self.stamp[:], p):]
		p = p[copy(f.self.attrs[:], p):]
	}
	f.entries = p
	return nil
}

// frameWriter writes frames of one directory after the other.
type frameWriter struct {
	out     *spool
	buffer  []byte
	copied  []byte // for what is taken over
	head    int    // where the entries begin
	depth   int
	name    string
	pending frame // first, last, self of what comes
}

// begin starts a part of a directory, which ends when end is called: one frame, or more if it is long.
func (w *frameWriter) begin(f *frame) {
	w.depth, w.name, w.pending = f.depth, f.name, frame{first: f.first, last: f.last, self: f.self}
	w.start()
}

func (w *frameWriter) start() {
	w.buffer = append(w.buffer[:0], make([]byte, frameHead)...)
	binary.LittleEndian.PutUint32(w.buffer[5:], uint32(w.depth))
	w.buffer[9] = byte(len(w.name))
	w.buffer = append(w.buffer, w.name...)
	if w.pending.first {
		w.buffer = append(w.buffer, w.pending.self.stamp[:]...)
		w.buffer = append(w.buffer, w.pending.self.attrs[:]...)
	}
	w.head = len(w.buffer)
}

// raw adds a record as it stands in another frame.
func (w *frameWriter) raw(record []byte) error {
	w.buffer = append(w.buffer, record...)
	return w.cut()
}

func (w *frameWriter) add(k *known) error {
	w.buffer = k.appendTo(w.buffer)
	return w.cut()
}

// cut ends a frame that is full. One that ends here may be followed by an empty one, which is no harm.
func (w *frameWriter) cut() error {
	if len(w.buffer) < frameFull {
		return nil
	}
	if err := w.write(false); err != nil {
		return err
	}
	w.pending.first = false
	w.start()
	return nil
}

func (w *frameWriter) end() error { return w.write(w.pending.last) }

func (w *frameWriter) write(last bool) error {
	binary.LittleEndian.PutUint32(w.buffer, uint32(len(w.buffer)))
	if w.pending.first {
		w.buffer[4] |= frameFirst
		if w.pending.self.settled {
			w.buffer[4] |= frameSettled
		}
	}
	if last {
		w.buffer[4] |= frameLast
	}
	if _, err := w.out.append(w.buffer); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return nil
}

// verbatim takes over a piece of another manifest.
func (w *frameWriter) verbatim(from *spool, start, end int64) error {
	const piece = 128 << 10
	if int64(len(w.copied)) < min(piece, end-start) {
		w.copied = make([]byte, min(piece, end-start))
	}
	for start < end {
		p := w.copied[:min(int64(len(w.copied)), end-start)]
		if err := from.readAt(p, start); err != nil {
			return err
		}
		if _, err := w.out.append(p); err != nil {
			return fmt.Errorf("write the manifest: %w", err)
		}
		start += int64(len(p))
	}
	return nil
}

// adopted reports whether a file is from an earlier copy: no file of the source is known to be the same.
func (k *known) adopted() bool { return k.stamp.inode() == inode{} }
