package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
)

// Inode identifies a file.
type Inode struct{ Device, Number uint64 }

// Linked is an inode with several names, or one that was parked, as the mirror has it.
type Linked struct {
	Number uint64
	Names  uint32 // at the mirror
	Round  uint64 // in which it was compared
	Parked bool   // it has no name now, and will get one
	state  int64  // where the spool of states has what is known of it
}

// LinkTable finds inodes that have several names: in memory while there are few, from then on in a
// hash table on disk, with open addressing. Its slots are read and written one by one.
type LinkTable struct {
	dir    string
	memory map[Inode]Linked
	states *Spool

	file  int   // -1: all is in memory
	slots int64 // a power of two
	taken int64 // slots that are not free; some may be of inodes that were deleted
}

const (
	linksMemory = 50_000
	slotSize    = 64

	slotFree = iota - 2
	slotUsed
	slotParked
	slotDeleted
)

// NewLinkTable returns an empty table; dir is for a file without a name.
func NewLinkTable(dir string) *LinkTable {
	return &LinkTable{dir: dir, memory: make(map[Inode]Linked), states: NewSpool(dir), file: -1}
}

// Close removes what the table has on disk.
func (t *LinkTable) Close() {
	if t.file >= 0 {
		unix.Close(t.file)
	}
	t.file, t.memory = -1, nil
	t.states.Close()
}

// Get returns what is known of an inode, and whether there is anything.
func (t *LinkTable) Get(key Inode) (Linked, bool, error) {
	if t.file < 0 {
		l, ok := t.memory[key]
		return l, ok, nil
	}
	_, l, ok, err := t.find(key)
	return l, ok, err
}

// Put adds an inode, or replaces what is known of it.
func (t *LinkTable) Put(key Inode, l Linked) error {
	if t.file < 0 {
		t.memory[key] = l
		if len(t.memory) < linksMemory {
			return nil
		}
		return t.move(4 * linksMemory)
	}
	slot, _, found, err := t.find(key)
	if err != nil {
		return err
	}
	if !found {
		if t.taken++; t.taken > t.slots/2 {
			if err := t.grow(); err != nil {
				return err
			}
			return t.Put(key, l)
		}
	}
	return t.write(slot, key, l, slotUsed)
}

// Remove forgets an inode.
func (t *LinkTable) Remove(key Inode) error {
	if t.file < 0 {
		delete(t.memory, key)
		return nil
	}
	slot, l, found, err := t.find(key)
	if err != nil || !found {
		return err
	}
	return t.write(slot, key, l, slotDeleted)
}

// find returns the slot of an inode, or where it would be.
func (t *LinkTable) find(key Inode) (slot int64, l Linked, found bool, err error) {
	hash := (key.Number ^ key.Device<<32) * 0x9e3779b97f4a7c15
	slot = int64(hash>>8) & (t.slots - 1)
	for range t.slots {
		at, l, mark, err := t.read(slot)
		switch {
		case err != nil:
			return 0, l, false, err
		case mark == slotFree:
			return slot, Linked{}, false, nil
		case at == key && mark != slotDeleted:
			return slot, l, true, nil
		}
		slot = (slot + 1) & (t.slots - 1)
	}
	return 0, Linked{}, false, errors.New("the table of files with several names is full")
}

func (t *LinkTable) read(slot int64) (key Inode, l Linked, mark byte, err error) {
	var p [slotSize]byte
	n, err := fsys.ReadMost(t.file, p[:], slot*slotSize)
	if err != nil || n < slotSize {
		return key, l, slotFree, err
	}
	le := binary.LittleEndian
	key = Inode{le.Uint64(p[:]), le.Uint64(p[8:])}
	mark = p[44]
	l = Linked{Number: le.Uint64(p[16:]), Round: le.Uint64(p[24:]), state: int64(le.Uint64(p[32:])),
		Names: le.Uint32(p[40:]), Parked: mark == slotParked}
	return key, l, mark, nil
}

func (t *LinkTable) write(slot int64, key Inode, l Linked, mark byte) error {
	if mark == slotUsed && l.Parked {
		mark = slotParked
	}
	var p [slotSize]byte
	le := binary.LittleEndian
	le.PutUint64(p[:], key.Device)
	le.PutUint64(p[8:], key.Number)
	le.PutUint64(p[16:], l.Number)
	le.PutUint64(p[24:], l.Round)
	le.PutUint64(p[32:], uint64(l.state))
	le.PutUint32(p[40:], l.Names)
	p[44] = mark
	if _, err := unix.Pwrite(t.file, p[:], slot*slotSize); err != nil {
		return fmt.Errorf("write lists of files in %s: %w", t.dir, err)
	}
	return nil
}

// move puts what is in memory on disk.
func (t *LinkTable) move(slots int64) error {
	t.slots = 1
	for t.slots < slots {
		t.slots *= 2
	}
	var err error
	if t.file, err = unix.Open(t.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err != nil {
		return fmt.Errorf("make a file for lists of files in %s: %w", t.dir, err)
	}
	t.taken = 0
	for key, l := range t.memory {
		if err := t.Put(key, l); err != nil {
			return err
		}
	}
	t.memory = nil
	return nil
}

// grow makes a larger table of those that are still in use.
func (t *LinkTable) grow() error {
	old, count := t.file, t.slots
	defer unix.Close(old)
	if err := t.move(4 * count); err != nil {
		return err
	}
	fresh := t.file
	for slot := range count {
		t.file = old
		key, l, mark, err := t.read(slot)
		t.file = fresh
		if err != nil {
			return err
		}
		if mark == slotUsed || mark == slotParked {
			if err := t.Put(key, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// Load returns what is known of an inode.
func (t *LinkTable) Load(l Linked) (k Known, err error) {
	var length [4]byte
	if err := t.states.ReadAt(length[:], l.state); err != nil {
		return k, err
	}
	p := make([]byte, binary.LittleEndian.Uint32(length[:]))
	if err := t.states.ReadAt(p, l.state+4); err != nil {
		return k, err
	}
	(&KnownReader{p}).Next(&k)
	return k, nil
}

// Keep notes what is known of an inode, and where.
func (t *LinkTable) Keep(l *Linked, k *Known) (err error) {
	p := k.appendTo(make([]byte, 4, 512))
	binary.LittleEndian.PutUint32(p, uint32(len(p)-4))
	l.state, err = t.states.Append(p)
	return err
}
