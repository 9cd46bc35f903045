package memory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

const (
	// leastShared is the minimum size of shared memory that is carried here. CRIU takes half a millisecond
	// for this much.
	leastShared = 256 << 10
	// mostObjects is the maximum number of objects: a restore gets a descriptor for each.
	mostObjects = 256
)

// object is memory that processes share, at the source.
type object struct {
	Object
	file  *os.File
	owner *task // holds the number, and what is read and sent
	known *hashing
	told  *Object            // as last sent
	data  []kernel.DataRange // present in the last round
	found *sight             // at the last look
	watch *watch             // since the last round; nil: not watched
}

// sharing is a source's knowledge of shared memory, which is carried as a whole, or not at all.
type sharing struct {
	tasks   *tasks
	device  uint64
	objects map[uint64]*object // by inode
	last    Task               // the last assigned number
	why     string             // why nothing is carried; empty if something is, or if there is nothing
	given   bool               // to somebody else, for good
	looked  bool               // in the freeze
	sent    bool               // in the freeze
	watched vantage            // in the last round
	frozen  vantage            // in the freeze
}

// seen is the result of a look.
type seen struct {
	all  map[uint64]*sight // by inode
	sysV bool              // there are System V segments, too, which CRIU must handle
}

// sight are the users of an object.
type sight struct {
	open     func() (*os.File, error)
	mappings map[place]*task
}

// place is a place where an object is mapped.
type place struct {
	pid     int
	mapping kernel.Mapping
}

func (s *seen) of(inode uint64) *sight {
	one := s.all[inode]
	if one == nil {
		one = &sight{mappings: map[place]*task{}}
		s.all[inode] = one
	}
	return one
}

// look finds what the processes share. It forgets objects that are no longer in use.
func (s *sharing) look() error {
	if s.given {
		return nil
	}
	if s.device == 0 {
		device, _, err := kernel.SharedDevice()
		if err != nil {
			return err
		}
		s.device, s.objects, s.last = device, map[uint64]*object{}, FirstObject-1
	}
	all := seen{all: map[uint64]*sight{}}
	for _, t := range s.tasks.all {
		if err := t.findShared(s.device, &all); err != nil {
			return t.describe(err)
		}
	}
	for inode, o := range s.objects {
		if all.all[inode] == nil {
			s.tasks.gone = append(s.tasks.gone, o.Task)
			delete(s.objects, inode)
			if err := o.file.Close(); err != nil {
				return err
			}
		}
	}
	return s.adopt(all)
}

// findShared adds what one process has mapped or open.
func (t *task) findShared(device uint64, all *seen) error {
	mappings, err := t.space.Mappings()
	if err != nil {
		return ignoreGone(err)
	}
	for _, m := range mappings {
		if m.Device != device {
			continue
		}
		// The inode of a System V segment is its number, and the first one is 0 (ipc/shm.c, newseg).
		_, anonymous, memfd := kernel.SharedName(m.Name)
		all.sysV = all.sysV || !anonymous && !memfd
		one := all.of(m.Inode)
		one.open = func() (*os.File, error) { return t.space.OpenMapped(m) }
		one.mappings[place{t.pid, m}] = t
	}
	descriptors, err := t.space.Memfds(device)
	for inode, fd := range descriptors {
		one := all.of(inode)
		one.open = func() (*os.File, error) { return t.space.OpenDescriptor(fd) }
	}
	return ignoreGone(err)
}

// adopt adopts the objects found, if that is worthwhile.
func (s *sharing) adopt(all seen) error {
	s.why = ""
	switch {
	case all.sysV:
		return s.leave("System V segments are mapped")
	case len(all.all) > mostObjects:
		return s.leave(fmt.Sprintf("there are more than %d objects of it", mostObjects))
	}
	fresh := map[uint64]*object{}
	size := int64(0)
	for inode, sight := range all.all {
		o := s.objects[inode]
		if o == nil {
			var err error
			if o, err = openObject(sight.open, inode, s.device); err != nil {
				return errors.Join(err, closeObjects(fresh))
			}
			if o == nil {
				continue
			}
			fresh[inode] = o
		}
		o.found = sight
		size += o.blocks()
	}
	if size < leastShared {
		return errors.Join(closeObjects(fresh), s.leave("it is small"))
	}
	for _, o := range inOrder(fresh, func(a, b *object) int { return cmp.Compare(a.Inode, b.Inode) }) {
		if s.last == lastTask {
			return errors.Join(closeObjects(fresh), s.leave("there have been too many objects of it"))
		}
		s.last++
		o.Task = s.last
		o.owner = &task{id: o.Task, pages: pages{sent: pageset.Set{}}}
		s.objects[o.Inode] = o
		delete(fresh, o.Inode)
	}
	return nil
}

// leave leaves shared memory to others, for now.
func (s *sharing) leave(why string) error {
	s.why = why
	for _, o := range s.objects {
		s.tasks.gone = append(s.tasks.gone, o.Task)
	}
	err := closeObjects(s.objects)
	s.objects = map[uint64]*object{}
	return err
}

func closeObjects(objects map[uint64]*object) error {
	var errs []error
	for _, o := range objects {
		errs = append(errs, o.file.Close())
	}
	return errors.Join(errs...)
}

// openObject returns nil for an object that no longer exists.
func openObject(open func() (*os.File, error), inode, device uint64) (*object, error) {
	file, err := open()
	if err != nil {
		return nil, ignoreGone(err)
	}
	var info unix.Stat_t
	err = unix.Fstat(int(file.Fd()), &info)
	if err == nil && (info.Dev != device || info.Ino != inode) {
		return nil, file.Close() // another has its place meanwhile
	}
	o := &object{file: file, known: newHashing()}
	if err == nil {
		err = o.describe()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return o, nil
}

// blocks returns how much memory an object takes.
func (o *object) blocks() int64 {
	var info unix.Stat_t
	if err := unix.Fstat(int(o.file.Fd()), &info); err != nil {
		return 0
	}
	return info.Blocks * 512
}

// describe reads the attributes that can change.
func (o *object) describe() error {
	var info unix.Stat_t
	if err := unix.Fstat(int(o.file.Fd()), &info); err != nil {
		return fmt.Errorf("look at shared memory: %w", err)
	}
	seals, err := unix.FcntlInt(o.file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("look at the seals of shared memory: %w", err)
	}
	target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", o.file.Fd()))
	if err != nil {
		return fmt.Errorf("look at the name of shared memory: %w", err)
	}
	o.Inode, o.Size = info.Ino, uint64(info.Size)
	o.UID, o.GID, o.Mode, o.Seals = info.Uid, info.Gid, info.Mode&0o7777, uint32(seals)
	o.Name, _, _ = kernel.SharedName(target)
	return nil
}

// Shared lists the inodes of everything that the processes, which are frozen, share without a file, if it
// is carried here: a dump has to leave all of it out, or GiveShared must be called. Call it before the
// final rounds.
func (s *Source) Shared() ([]uint64, error) {
	stats := RoundStats{}
	if err := s.tasks.update(true, &stats); err != nil {
		return nil, fmt.Errorf("look for shared memory: %w", err)
	}
	if err := s.shared.look(); err != nil {
		return nil, fmt.Errorf("look for shared memory: %w", err)
	}
	if len(s.shared.objects) > 0 {
		s.shared.frozen = s.tasks.vantage() // before a dump makes the processes do anything
	}
	s.shared.looked = true
	var inodes []uint64
	for _, o := range s.shared.inOrder() {
		inodes = append(inodes, o.Inode)
	}
	return inodes, nil
}

// GiveShared leaves shared memory to somebody else, for good.
func (s *Source) GiveShared(why string) error {
	s.shared.given = true
	return s.shared.leave(why)
}

func (s *sharing) inOrder() []*object {
	return inOrder(s.objects, func(a, b *object) int { return cmp.Compare(a.Task, b.Task) })
}

func inOrder(objects map[uint64]*object, compare func(a, b *object) int) []*object {
	all := make([]*object, 0, len(objects))
	for _, o := range objects {
		all = append(all, o)
	}
	slices.SortFunc(all, compare)
	return all
}

func (s *sharing) close() error {
	err := closeObjects(s.objects)
	s.objects, s.given = nil, true
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}
