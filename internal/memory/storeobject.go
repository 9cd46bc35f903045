package memory

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// storedObject is memory that processes share, at the target: a memfd that becomes the object itself.
type storedObject struct {
	mu   sync.RWMutex // writers to the file hold it for reading, replacing the file holds it for writing
	file *os.File
	name string
	page []byte // its description; nil until one has come
	is   Object
}

// object returns the object with a number, and makes it if necessary. The caller holds the lock.
func (s *Store) object(task Task) (*storedObject, error) {
	if o := s.shared[task]; o != nil {
		return o, nil
	}
	file, err := newObjectFile("")
	if err != nil {
		return nil, err
	}
	o := &storedObject{file: file}
	s.shared[task] = o
	return o, nil
}

func newObjectFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	return os.NewFile(uintptr(fd), "shared"), nil
}

func (o *storedObject) write(data []byte, offset int64) error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	_, err := o.file.WriteAt(data, offset)
	return err
}

// describe stores the page that describes an object.
func (s *Store) describe(run Run, data []byte) error {
	if run.Address != descriptionAddress || run.Pages != 1 || run.Zero {
		return fmt.Errorf("%w run of pages: %d pages at %#x of shared memory", ErrMalformed, run.Pages,
			run.Address)
	}
	is, err := parseDescription(run.Task, data)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	base := uint64(descriptionAddress - descriptionAddress%slotBytes)
	one, err := s.find(run.Task, base)
	if err != nil {
		return err
	}
	o := one.object
	if err := o.rename(is.Name); err != nil {
		return err
	}
	index := int((descriptionAddress - base) / uint64(PageSize()))
	if !one.have.has(index) {
		if err := s.take(int64(PageSize())); err != nil {
			return err
		}
		one.have.set(index, index+1, true)
	}
	o.is, o.page = is, append([]byte(nil), data...)
	return nil
}

// rename gives the file its name, which is possible only when it is created. Usually the file is still
// empty: the description is sent first.
func (o *storedObject) rename(name string) error {
	if o.name == name {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	file, err := newObjectFile(name)
	if err != nil {
		return err
	}
	size, err := o.file.Seek(0, io.SeekEnd)
	if err == nil && size > 0 {
		err = copyData(file, o.file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("rename shared memory: %w", err), file.Close())
	}
	err = o.file.Close()
	o.file, o.name = file, name
	return err
}

// StoredObject is shared memory that is ready to be mapped. Its taker closes the file.
type StoredObject struct {
	Object
	File *os.File
}

// LateSeals are the seals that can be added only when everything writable is mapped.
func (o *StoredObject) LateSeals() uint32 {
	if o.Seals&unix.F_SEAL_FUTURE_WRITE == 0 {
		return 0
	}
	return o.Seals & (unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL)
}

// TakeObjects ends the objects of the store: each has its size, owner, permissions and seals (see
// LateSeals), and belongs to the caller. It has the pages that Keep has kept, and no others.
func (s *Store) TakeObjects() ([]StoredObject, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return nil, errSealed
	}
	var all []StoredObject
	for _, o := range s.shared {
		if o.page == nil {
			return nil, fmt.Errorf("%w: the description of shared memory", ErrPagesMissing)
		}
		one := StoredObject{Object: o.is, File: o.file}
		if err := one.finish(); err != nil {
			return nil, fmt.Errorf("shared memory %q of inode %d: %w", o.is.Name, o.is.Inode, err)
		}
		all = append(all, one)
	}
	for _, one := range all {
		delete(s.shared, one.Task)
		delete(s.tasks, one.Task)
	}
	return all, nil
}

func (o *StoredObject) finish() error {
	if err := o.File.Truncate(int64(o.Size)); err != nil {
		return fmt.Errorf("set its size: %w", err)
	}
	if err := unix.Fchown(int(o.File.Fd()), int(o.UID), int(o.GID)); err != nil {
		return fmt.Errorf("set its owner: %w", err)
	}
	if err := unix.Fchmod(int(o.File.Fd()), o.Mode); err != nil {
		return fmt.Errorf("set its permissions: %w", err)
	}
	return o.addSeals(o.Seals &^ o.LateSeals())
}

// Seal adds the seals that LateSeals left for the end.
func (o *StoredObject) Seal() error { return o.addSeals(o.LateSeals()) }

func (o *StoredObject) addSeals(seals uint32) error {
	if seals == 0 {
		return nil
	}
	if _, err := unix.FcntlInt(o.File.Fd(), unix.F_ADD_SEALS, int(seals)); err != nil {
		return fmt.Errorf("seal it (%#x): %w", seals, err)
	}
	return nil
}

// copyData copies everything except holes.
func copyData(to, from *os.File) error {
	data, err := kernel.DataRanges(from)
	if err != nil {
		return err
	}
	for _, part := range data {
		if _, err := to.Seek(int64(part.Start), io.SeekStart); err != nil {
			return err
		}
		if _, err := io.Copy(to, io.NewSectionReader(from, int64(part.Start),
			int64(part.End-part.Start))); err != nil {
			return err
		}
	}
	return nil
}

// Object returns the description of shared memory. False: there is none with this number, or it was not
// described.
func (s *Store) Object(task Task) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.shared[task]
	if o == nil || o.page == nil {
		return Object{}, false
	}
	return o.is, true
}
