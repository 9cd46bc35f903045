package memory

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A store keeps the memory of tasks in slots: everything at a multiple of slotBytes in a task's address
// space is together, in order, in one file in memory. The file is sparse, so a slot takes only what was put
// into it. Slots lie in the file in the order in which their first page came.
const (
	slotBytes = 2 << 20
	// slotCost is the size that a slot is counted as besides its pages, so that a peer cannot fill the
	// memory with the administration of pages, either.
	slotCost = 512
	maskBits = 64
)

// mask has a bit for each page of a slot; there are 512 of 4 KiB.
type mask [slotBytes / 4096 / maskBits]uint64

func (m *mask) has(page int) bool { return m[page/maskBits]>>(page%maskBits)&1 != 0 }

func (m *mask) set(from, to int, value bool) {
	for from < to {
		bit := from % maskBits
		n := min(to-from, maskBits-bit)
		part := ^uint64(0) >> (maskBits - n) << bit
		if value {
			m[from/maskBits] |= part
		} else {
			m[from/maskBits] &^= part
		}
		from += n
	}
}

func (m *mask) count() int {
	n := 0
	for _, word := range m {
		n += bits.OnesCount64(word)
	}
	return n
}

// slot is one part of a task's address space.
type slot struct {
	offset int64 // in the file; negative while all pages are zero
	have   mask  // pages with content
	zero   mask  // pages that are known to be zero; they take no memory
	// pages that come after the restore: see Remote. A page is in at most one of the three
	remote mask
	had    mask          // of remote, those whose place has the previous content
	again  mask          // pages whose content came more than once, whatever has happened to them since
	object *storedObject // whose file has the slot, at its own offset; nil: the store's file has it
}

// ErrStoreFull is wrapped by errors of Put when a peer sends more than was agreed.
var ErrStoreFull = errors.New("more memory comes than was announced")

// errSealed is the error of a store that was handed over.
var errSealed = errors.New("the pages were handed over")

// Store keeps pages of tasks in memory, and nowhere else, until a restore takes them. Its methods may be
// called concurrently.
type Store struct {
	limit int64

	mu     sync.Mutex
	file   *os.File
	tasks  map[Task]map[uint64]*slot // by address
	shared map[Task]*storedObject
	used   int64
	size   int64 // of the file: slots times slotBytes
	sealed bool
	before *Before // nil: nothing, or it was taken
	stats  StoreStats
}

// StoreStats counts a store's pages.
type StoreStats struct {
	Tasks       int
	Pages       int64 // of processes, with content
	SharedPages int64 // of objects, with content
	ZeroPages   int64 // known to be zero
	RemotePages int64 // of processes, to come after the restore
	PutPages    int64 // with content, in total
	PutZero     int64 // zero, in total
	PlacedAgain int64 // of PutPages, those that replaced content
}

// NewStore makes a store that takes at most limit bytes of memory.
func NewStore(limit int64) (*Store, error) {
	fd, err := unix.MemfdCreate("godwit-pages", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a store for pages: %w", err)
	}
	return newStore(os.NewFile(uintptr(fd), "pages"), limit), nil
}

func newStore(file *os.File, limit int64) *Store {
	return &Store{limit: limit, file: file, tasks: map[Task]map[uint64]*slot{},
		shared: map[Task]*storedObject{}}
}

// piece is the part of a run that is in one slot.
type piece struct {
	slot     *slot
	from, to int // pages of the slot
	reserved int64
}

// Put stores a run, which replaces the store's content of these pages. data is not used after Put returns.
func (s *Store) Put(run Run, data []byte) error {
	if err := run.Check(); err != nil {
		return err
	}
	size := PageSize()
	if !run.Zero && len(data) != int(run.Pages)*size {
		return fmt.Errorf("%w run of pages: %d bytes for %d pages", ErrMalformed, len(data), run.Pages)
	}
	if run.Task.IsObject() && run.Address+uint64(run.Pages)*uint64(size) > maxObjectBytes {
		return s.describe(run, data)
	}
	for address, left := run.Address, int(run.Pages); left > 0; {
		from := int(address % slotBytes / uint64(size))
		to := min(from+left, slotBytes/size)
		bytes := (to - from) * size
		var err error
		if run.Zero {
			err = s.putZero(run.Task, address-address%slotBytes, from, to)
		} else {
			err = s.putData(run.Task, address-address%slotBytes, from, to, data[:bytes])
			data = data[bytes:]
		}
		if err != nil {
			return fmt.Errorf("keep %d pages at %#x of process %d: %w", to-from, address, run.Task, err)
		}
		address, left = address+uint64(bytes), left-(to-from)
	}
	return nil
}

// find returns the slot at an address, and makes it if necessary.
func (s *Store) find(task Task, address uint64) (*slot, error) {
	if s.sealed {
		return nil, errSealed
	}
	slots := s.tasks[task]
	if slots == nil {
		if len(s.tasks) >= MaxTasks {
			return nil, fmt.Errorf("%w: of more than %d processes", ErrStoreFull, MaxTasks)
		}
		slots = map[uint64]*slot{}
		s.tasks[task] = slots
	}
	one := slots[address]
	if one == nil {
		if err := s.take(slotCost); err != nil {
			return nil, err
		}
		one = &slot{offset: -1}
		if task.IsObject() {
			object, err := s.object(task)
			if err != nil {
				return nil, err
			}
			one.object, one.offset = object, int64(address)
		}
		slots[address] = one
	}
	return one, nil
}

// take counts bytes against the limit.
func (s *Store) take(bytes int64) error {
	if bytes > s.limit-s.used {
		return fmt.Errorf("%w: %d bytes and no room for %d more", ErrStoreFull, s.used, bytes)
	}
	s.used += bytes
	return nil
}

func (s *Store) putData(task Task, address uint64, from, to int, data []byte) error {
	p, err := s.reserve(task, address, from, to)
	if err != nil {
		return err
	}
	// Two runs of the same pages at the same time have no order, so they need no lock.
	err = s.write(p.slot, data, p.slot.offset+int64(from*PageSize()))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= p.reserved
	if err != nil {
		return err
	}
	if s.sealed {
		return errSealed
	}
	before, counted := p.slot.have.count(), p.slot.counted()
	p.slot.cameAgain(from, to)
	p.slot.have.set(from, to, true)
	p.slot.zero.set(from, to, false)
	p.slot.remote.set(from, to, false)
	p.slot.had.set(from, to, false)
	fresh := p.slot.have.count() - before
	s.used += int64((p.slot.counted() - counted) * PageSize())
	s.stats.PutPages += int64(to - from)
	s.stats.PlacedAgain += int64(to - from - fresh)
	return nil
}

// cameAgain records which of these pages, whose content comes, already have content.
func (s *slot) cameAgain(from, to int) {
	var come mask
	come.set(from, to, true)
	for i := range come {
		s.again[i] |= come[i] & s.have[i]
	}
}

// write writes to a slot's place in the file.
func (s *Store) write(one *slot, data []byte, offset int64) error {
	if one.object != nil {
		return one.object.write(data, offset)
	}
	_, err := s.file.WriteAt(data, offset)
	return err
}

// reserve finds a place for pages.
func (s *Store) reserve(task Task, address uint64, from, to int) (piece, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, err := s.find(task, address)
	if err != nil {
		return piece{}, err
	}
	p := piece{slot: one, from: from, to: to}
	for page := from; page < to; page++ {
		if !one.have.has(page) && !one.remote.has(page) {
			p.reserved += int64(PageSize())
		}
	}
	if err := s.take(p.reserved); err != nil {
		return piece{}, err
	}
	if one.offset < 0 {
		one.offset = s.size
		s.size += slotBytes
	}
	return p, nil
}

func (s *Store) putZero(task Task, address uint64, from, to int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, err := s.find(task, address)
	if err != nil {
		return err
	}
	one.zero.set(from, to, true)
	s.stats.PutZero += int64(to - from)
	return s.drop(one, from, to)
}

// drop forgets the content of pages and frees their memory.
func (s *Store) drop(one *slot, from, to int) error {
	before := one.counted()
	one.have.set(from, to, false)
	one.remote.set(from, to, false)
	one.had.set(from, to, false)
	gone := before - one.counted()
	if gone == 0 {
		return nil
	}
	s.used -= int64(gone * PageSize())
	return s.punch(one, from, to)
}

// counted returns how many pages of a slot take memory, or will.
func (s *slot) counted() int { return s.have.count() + s.remote.count() }

// punch frees memory of a slot.
func (s *Store) punch(one *slot, from, to int) error {
	file := s.fileOf(one)
	start, size := one.offset+int64(from*PageSize()), int64((to-from)*PageSize())
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, size)
}

// ReadPage reads the store's content of a page, or zeros for a known zero page. False: the store has
// nothing.
func (s *Store) ReadPage(task Task, address uint64, page []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.tasks[task][address-address%slotBytes]
	if one == nil || s.file == nil {
		return false, nil
	}
	index := int(address % slotBytes / uint64(PageSize()))
	file := s.file
	if one.object != nil {
		if address >= maxObjectBytes {
			return copy(page, one.object.page) > 0, nil
		}
		file = one.object.file
	}
	switch {
	case one.zero.has(index):
		clear(page)
		return true, nil
	case !one.have.has(index):
		return false, nil
	}
	n, err := file.ReadAt(page[:PageSize()], one.offset+int64(index*PageSize()))
	return n == PageSize(), err
}

// Stats returns the present counts.
func (s *Store) Stats() StoreStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Tasks = len(s.tasks)
	for task, slots := range s.tasks {
		pages := &stats.Pages
		if task.IsObject() {
			pages = &stats.SharedPages
		}
		for _, one := range slots {
			*pages += int64(one.have.count())
			stats.ZeroPages += int64(one.zero.count())
			stats.RemotePages += int64(one.remote.count())
		}
	}
	return stats
}

// Bytes returns how much of the limit is used.
func (s *Store) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Close frees the memory, unless it was handed over.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed, s.tasks = true, nil
	errs := []error{s.closeBefore()}
	for _, object := range s.shared {
		errs = append(errs, object.file.Close())
	}
	s.shared = nil
	if s.file != nil {
		errs = append(errs, s.file.Close())
		s.file = nil
	}
	return errors.Join(errs...)
}
