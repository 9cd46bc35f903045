package copies

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// openFile is the regular file whose content is being received; it is valid while entry is not nil.
type openFile struct {
	fd      int
	old     int // source of copies; -1: none
	entry   *fsys.Entry
	fresh   bool   // made by this record; otherwise it is changed
	beside  bool   // fd is a new file that replaces the old one
	stored  string // a name on the stage, removed unless put in place
	size    int64  // of the content before
	before  int64  // space that it used then
	end     int64  // of the last received bytes
	written int64  // since the used space was checked

	used  *files.Usage
	ended func() error // why not to go on; nil: go on
}

func (f *openFile) close() {
	if f.entry == nil {
		return
	}
	unix.Close(f.fd)
	if f.old >= 0 {
		unix.Close(f.old)
	}
	f.entry = nil
}

// Names on the stage, where all other names are numbers.
const (
	besideName = "new"
	beforeName = "old"
)

// shorten prepares a change in place.
func (f *openFile) shorten() error {
	if f.entry.Size < f.size {
		f.size = f.entry.Size
		return unix.Ftruncate(f.fd, f.size)
	}
	return nil
}

// makeBeside prepares a change that needs the previous content to the end. It creates a file with one name
// again, beside the old one. The inode of a file with several names must stay, so its old content is put
// beside it.
func (f *openFile) makeBeside(s *stage, stat *unix.Stat_t) error {
	name := besideName
	if f.entry.Links != 0 || stat.Nlink > 1 {
		name = beforeName
	}
	fd, err := unix.Openat(s.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC,
		0o600)
	if err != nil {
		return err
	}
	f.stored = name
	if name == besideName {
		f.old, f.fd, f.beside = f.fd, fd, true
		return nil
	}
	f.old = fd
	if err := f.copyRange(f.fd, 0, f.old, 0, f.size); err != nil {
		return err
	}
	if f.entry.Size < f.size {
		return unix.Ftruncate(f.fd, f.entry.Size)
	}
	return nil
}

// wrote counts written bytes, and stops when the file has grown beyond the limits. It checks the file's
// size only if it may have, because a write need not make a file larger.
func (f *openFile) wrote(n int64) error {
	f.written += n
	if f.used.Room(f.written) {
		return nil
	}
	grown, err := f.grown()
	if err != nil {
		return err
	}
	if !f.used.Room(grown) {
		return f.used.Full()
	}
	f.written = max(0, grown)
	return nil
}

// grown returns by how much the file has grown on disk since the record began, or will have grown when the
// new file has taken its place.
func (f *openFile) grown() (int64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(f.fd, &stat); err != nil {
		return 0, err
	}
	return files.Occupied(&stat) - f.before, nil
}

func (b *builder) Data(offset int64, piece []byte) error {
	if b.nursery.small != nil {
		b.nursery.next.data = append(b.nursery.next.data, piece...)
		return nil
	}
	if err := writeFull(b.file.fd, piece, offset); err != nil {
		return b.failed("write", b.file.entry.Name, err)
	}
	b.file.end = offset + int64(len(piece))
	return b.file.wrote(int64(len(piece)))
}

func writeFull(fd int, piece []byte, offset int64) error {
	for len(piece) > 0 {
		n, err := unix.Pwrite(fd, piece, offset)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		}
		piece, offset = piece[n:], offset+int64(n)
	}
	return nil
}

// wholePage is at least the size of the pages or blocks in which a file system can free space.
const wholePage = 64 << 10

// Hole makes a hole where there may be data. Beyond the previous content, and in a new file, there is none.
func (b *builder) Hole(offset, length int64) error {
	if b.nursery.small != nil {
		if err := b.uncollect(); err != nil {
			return err
		}
	}
	if err := b.file.hole(offset, length); err != nil {
		return b.failed("make a hole in", b.file.entry.Name, err)
	}
	return nil
}

func (f *openFile) hole(offset, length int64) error {
	if f.fresh || f.beside {
		return nil
	}
	if length <= 0 || f.size <= offset {
		return nil
	}
	if length >= f.size-offset {
		// To the end and beyond: some file systems, such as tmpfs, free only whole pages, and zero the
		// rest.
		length = f.size - offset + wholePage
	}
	err := unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = f.zero(offset, min(length, f.size-offset))
	}
	return err
}

// zero is for file systems without holes.
func (f *openFile) zero(offset, length int64) error {
	zeros := make([]byte, min(length, copyBuffer))
	for length > 0 {
		if err := f.ended(); err != nil {
			return err
		}
		piece := zeros[:min(length, copyBuffer)]
		if err := writeFull(f.fd, piece, offset); err != nil {
			return err
		}
		if err := f.wrote(int64(len(piece))); err != nil {
			return err
		}
		offset, length = offset+int64(len(piece)), length-int64(len(piece))
	}
	return nil
}

func (b *builder) Keep(offset, length int64) error {
	if b.nursery.small != nil {
		return fmt.Errorf("%w: it keeps %d bytes of a new file", records.ErrCorrupt, length)
	}
	f := &b.file
	if err := f.had(offset, length); err != nil {
		return b.failed("change", f.entry.Name, err)
	}
	if f.beside {
		return b.Copy(offset, offset, length)
	}
	return nil
}

// had returns an error unless the previous content reached this far.
func (f *openFile) had(from, length int64) error {
	if f.fresh || from > f.size-length {
		return fmt.Errorf("%w: it keeps %d bytes at %d, but the file has %d", records.ErrCorrupt, length,
			from,
			f.size)
	}
	return nil
}

func (b *builder) Copy(offset, from, length int64) error {
	f := &b.file
	err := f.had(from, length)
	if err == nil {
		err = b.Hole(offset, length) // what is copied may have holes
	}
	if err == nil {
		err = f.copyRange(f.old, from, f.fd, offset, length)
	}
	if err != nil {
		return b.failed("change", f.entry.Name, err)
	}
	return nil
}

// copyStep is how much is copied between two checks whether it is still wanted; copyBuffer is for when the
// kernel cannot copy.
const (
	copyStep   = 16 << 20
	copyBuffer = 256 << 10
)

// copyRange copies data from one file to another, without holes.
func (f *openFile) copyRange(from int, start int64, to int, offset, length int64) error {
	limit := start + length
	for position := start; position < limit; {
		begin, end, err := fsys.NextData(from, position, limit)
		if err != nil || begin == end {
			return err
		}
		for begin < end {
			if err := f.ended(); err != nil {
				return err
			}
			step := min(end-begin, copyStep)
			if err := copyData(from, begin, to, offset+begin-start, step); err != nil {
				return err
			}
			if err := f.wrote(step); err != nil {
				return err
			}
			begin += step
		}
		position = end
	}
	return nil
}

func copyData(from int, start int64, to int, offset, length int64) error {
	for length > 0 {
		n, err := unix.CopyFileRange(from, &start, to, &offset, int(length), 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS),
			errors.Is(err, unix.EOPNOTSUPP):
			return copyThrough(from, start, to, offset, length)
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("a file became shorter while it was copied")
		}
		length -= int64(n) // the positions have already moved
	}
	return nil
}

func copyThrough(from int, start int64, to int, offset, length int64) error {
	buffer := make([]byte, min(length, copyBuffer))
	for length > 0 {
		piece := buffer[:min(length, copyBuffer)]
		if err := fsys.ReadFull(from, piece, start); err != nil {
			return err
		}
		if err := writeFull(to, piece, offset); err != nil {
			return err
		}
		n := int64(len(piece))
		start, offset, length = start+n, offset+n, length-n
	}
	return nil
}

// Done completes the file: content that was not received is a hole.
func (b *builder) Done(offset int64) error {
	if b.nursery.small != nil && offset == b.nursery.small.Size {
		return b.nursery.collected(b.at.spot().growing, &b.used)
	}
	if b.nursery.small != nil {
		if err := b.uncollect(); err != nil {
			return err
		}
	}
	f := &b.file
	name := f.entry.Name
	if err := b.Hole(offset, f.entry.Size-offset); err != nil {
		return err
	}
	if !f.fresh || f.end < f.entry.Size {
		if err := unix.Ftruncate(f.fd, f.entry.Size); err != nil {
			return b.failed("set the size of", name, err)
		}
	}
	return b.complete()
}

// complete gives a regular file its attributes, and puts it in its place.
func (b *builder) complete() error {
	f := &b.file
	defer f.close()
	exactly := !f.fresh || !b.at.spot().made
	err := b.xattrs.SetOpen(f.fd, f.entry, exactly && !f.beside)
	if err == nil {
		err = f.account()
	}
	if err == nil && f.stored != "" {
		err = b.swap()
	}
	if err == nil {
		err = b.known(f.entry)
	}
	if err != nil {
		return b.failed("complete", f.entry.Name, err)
	}
	return nil
}

func (f *openFile) account() error {
	var stat unix.Stat_t
	if err := unix.Fstat(f.fd, &stat); err != nil {
		return err
	}
	f.used.Bytes = max(0, f.used.Bytes+files.Occupied(&stat)-f.before)
	return nil
}

// swap puts a file that was made beside the old one in its place, or removes the saved old content.
func (b *builder) swap() error {
	f, s := &b.file, &b.here.stage
	if !f.beside {
		return unix.Unlinkat(s.fd, f.stored, 0)
	}
	return b.at.edit(func() error {
		return fsys.WithoutLocks(s.fd, f.stored,
			func() error { return unix.Renameat(s.fd, f.stored, b.at.Fd(), f.entry.Name) })
	})
}
