package copies

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/chunk"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/manifest"
	"github.com/godwit/godwit/internal/files/records"
)

// inlineSize is the maximum size of files that workers read into memory. Larger files are read into the
// stream.
const inlineSize = 128 << 10

// fileReader reads files and their attributes, and makes records of them. It is for one goroutine.
type fileReader struct {
	xattrs *fsys.XattrReader
	hasher *chunk.Hasher
	sketch records.Encoder // for what is only hashed
	record records.Encoder // for what is sent
	ops    records.Encoder // content of a small file
	buffer []byte
	read   int64 // bytes of content
	block  int64 // a hole is no smaller
	last   subject
}

func (s *Source) newFileReader() (*fileReader, error) {
	hasher, err := chunk.NewHasher(s.key)
	return &fileReader{xattrs: fsys.NewXattrReader(), hasher: hasher}, err
}

// subject is a file that is being read.
type subject struct {
	fd     int  // -1 unless it is a regular file
	data   bool // it begins with data
	leased bool // a regular file whose content cannot be read yet
	stat   unix.Stat_t
	entry  fsys.Entry
}

func (s *subject) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

// open finds a file by name and reads everything about it except its content. It returns nil if the file no
// longer exists, or is of another kind than expected (unix.DT_*). The result is valid until the next call.
func (r *fileReader) open(dirfd int, name string, kind byte) (*subject, error) {
	s := &r.last
	*s = subject{fd: -1}
	gone, err := r.find(s, dirfd, name, kind)
	if err == nil && !gone {
		s.entry = fsys.Describe(name, &s.stat)
		gone, err = r.describe(s, dirfd, name)
	}
	if err != nil || gone {
		s.close()
		return nil, err
	}
	return s, nil
}

func (r *fileReader) find(s *subject, dirfd int, name string, kind byte) (gone bool, err error) {
	if kind == unix.DT_REG {
		const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOATIME |
			unix.O_CLOEXEC
		s.fd, err = unix.Openat(dirfd, name, flags, 0)
		if err == nil {
			// Waits for a write in progress, see settle.go.
			first, seek := unix.Seek(s.fd, 0, unix.SEEK_DATA)
			s.data = seek == nil && first == 0
			err = unix.Fstat(s.fd, &s.stat)
		} else {
			s.fd = -1
		}
	} else {
		err = unix.Fstatat(dirfd, name, &s.stat, unix.AT_SYMLINK_NOFOLLOW)
	}
	switch {
	case fsys.Moved(err):
		return true, nil
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.EACCES):
		return replaced(dirfd, name, kind, err)
	case errors.Is(err, unix.EAGAIN):
		return false, fmt.Errorf("open it: %w: %w", errLeased, err)
	case err != nil:
		return false, fmt.Errorf("open it: %w", err)
	}
	return byte(s.stat.Mode&unix.S_IFMT>>12) != kind, nil
}

// replaced reports whether something that could not be opened is no longer a file: sockets and devices
// answer like this. A file that cannot be read, as on network file systems even by root, must not be left
// out.
func replaced(dirfd int, name string, kind byte, err error) (bool, error) {
	var now unix.Stat_t
	if unix.Fstatat(dirfd, name, &now, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		byte(now.Mode&unix.S_IFMT>>12) == kind {
		return false, fmt.Errorf("open it: %w", err)
	}
	return true, nil
}

// describe adds to an entry what stat does not report.
func (r *fileReader) describe(s *subject, dirfd int, name string) (gone bool, err error) {
	if s.fd >= 0 {
		return false, r.xattrs.Complete(&s.entry, s.fd)
	}
	if s.entry.Type() == unix.S_IFLNK {
		s.entry.Target, err = fsys.ReadLink(dirfd, name)
	}
	if err == nil {
		s.entry.Xattrs, err = r.xattrs.Read(fsys.Named(dirfd, name))
	}
	if fsys.Moved(err) || errors.Is(err, unix.EINVAL) { // not a link any more
		return true, nil
	}
	return false, err
}

// attrs returns the digest of an entry. It excludes the name, of which a file may have several, and the
// space that the source's file system uses for it.
func (r *fileReader) attrs(entry *fsys.Entry) chunk.Digest {
	plain := *entry
	plain.Name, plain.Stored = "", 0
	r.sketch.Scratch = r.sketch.Scratch[:0]
	r.sketch.Entry(&plain)
	return r.hasher.Of(r.sketch.Scratch)
}

// known makes the manifest's record of a file, except its content.
func (r *fileReader) known(s *subject, settled bool) manifest.Known {
	return manifest.Known{Name: s.entry.Name, Settled: settled, Stamp: manifest.StampOf(&s.stat),
		Attrs: r.attrs(&s.entry),
		Links: s.entry.Links}
}

// errLeased is the error for a file on which a process holds a write lease. The kernel has asked that
// process to give the lease up, which it can do until it is frozen.
var errLeased = errors.New("a process holds a lease on it, and has been asked to give it up; try again")

// leased is like open for a file that cannot be opened yet.
func (r *fileReader) leased(dirfd int, name string) (*subject, error) {
	s := &r.last
	*s = subject{fd: -1, leased: true}
	if err := unix.Fstatat(dirfd, name, &s.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil ||
		s.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fsys.UnlessGone(err)
	}
	s.entry = fsys.Describe(name, &s.stat)
	if gone, err := r.describe(s, dirfd, name); err != nil || gone {
		return nil, err
	}
	return s, nil
}

// inline reads the content of a small file as operations, whose digest it returns. For a file that became
// shorter it returns a hole at the end, and an error.
func (r *fileReader) inline(s *subject) (chunk.Digest, uint64, error) {
	var (
		data  uint64
		short error
	)
	size := s.entry.Size
	r.ops.Scratch = r.ops.Scratch[:0]
	for done := int64(0); done < size && short == nil; {
		start, end, err := r.nextData(s, done)
		if err != nil {
			return chunk.Digest{}, 0, err
		}
		if start == end {
			break
		}
		if start > done {
			r.ops.Scratch = append(r.ops.Scratch, byte(records.OpHole))
			r.ops.Number(uint64(start - done))
		}
		length := int(end - start)
		r.ops.DataHeader(length)
		begin := len(r.ops.Scratch)
		r.ops.Scratch = append(r.ops.Scratch, make([]byte, length)...)
		if short = fsys.ReadFull(s.fd, r.ops.Scratch[begin:], start); short != nil &&
			!errors.Is(short, fsys.ErrShorter) {
			return chunk.Digest{}, 0, short
		}
		data += uint64(length)
		done = end
	}
	r.read += int64(data)
	r.ops.Scratch = append(r.ops.Scratch, byte(records.OpEnd))
	r.sketch.Scratch = r.sketch.Scratch[:0]
	r.sketch.Number(uint64(size))
	r.hasher.Write(r.sketch.Scratch)
	r.hasher.Write(r.ops.Scratch)
	return r.hasher.Sum(), data, short
}

// NextData spares most small files the search: if the first block is data and the only one, everything is
// data.
func (r *fileReader) nextData(s *subject, from int64) (start, end int64, err error) {
	if s.data && s.entry.Size <= r.block {
		return from, s.entry.Size, nil
	}
	return fsys.NextData(s.fd, from, s.entry.Size)
}
