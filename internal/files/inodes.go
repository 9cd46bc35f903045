package files

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// inode identifies a file.
type inode struct{ device, number uint64 }

// linked is an inode with several names, or one that was parked, as the mirror has it.
type linked struct {
	number uint64
	names  uint32 // at the mirror
	round  uint64 // in which it was compared
	parked bool   // it has no name now, and will get one
	state  int64  // where the spool of states has what is known of it
}

// linkTable finds inodes that have several names: in memory while there are few, from then on in a
// hash table on disk, with open addressing. Its slots are read and written one by one.
type linkTable struct {
	dir    string
	memory map[inode]linked
	states *spool

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

func newLinkTable(dir string) *linkTable {
	return &linkTable{dir: dir, memory: make(map[inode]linked), states: newSpool(dir), file: -1}
}

func (t *linkTable) close() {
	if t.file >= 0 {
		unix.Close(t.file)
	}
	t.file, t.memory = -1, nil
	t.states.close()
}

func (t *linkTable) get(key inode) (linked, bool, error) {
	if t.file < 0 {
		l, ok := t.memory[key]
		return l, ok, nil
	}
	_, l, ok, err := t.find(key)
	return l, ok, err
}

func (t *linkTable) put(key inode, l linked) error {
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
			return t.put(key, l)
		}
	}
	return t.write(slot, key, l, slotUsed)
}

func (t *linkTable) remove(key inode) error {
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
func (t *linkTable) find(key inode) (slot int64, l linked, found bool, err error) {
	hash := (key.number ^ key.device<<32) * 0x9e3779b97f4a7c15
	slot = int64(hash>>8) & (t.slots - 1)
	for range t.slots {
		at, l, mark, err := t.read(slot)
		switch {
		case err != nil:
			return 0, l, false, err
		case mark == slotFree:
			return slot, linked{}, false, nil
		case at == key && mark != slotDeleted:
			return slot, l, true, nil
		}
		slot = (slot + 1) & (t.slots - 1)
	}
	return 0, linked{}, false, errors.New("the table of files with several names is full")
}

func (t *linkTable) read(slot int64) (key inode, l linked, mark byte, err error) {
	var p [slotSize]byte
	n, err := readMost(t.file, p[:], slot*slotSize)
	if err != nil || n < slotSize {
		return key, l, slotFree, err
	}
	le := binary.LittleEndian
	key = inode{le.Uint64(p[:]), le.Uint64(p[8:])}
	mark = p[44]
	l = linked{number: le.Uint64(p[16:]), round: le.Uint64(p[24:]), state: int64(le.Uint64(p[32:])),
		names: le.Uint32(p[40:]), parked: mark == slotParked}
	return key, l, mark, nil
}

func (t *linkTable) write(slot int64, key inode, l linked, mark byte) error {
	if mark == slotUsed && l.parked {
		mark = slotParked
	}
	var p [slotSize]byte
	le := binary.LittleEndian
	le.PutUint64(p[:], key.device)
	le.PutUint64(p[8:], key.number)
	le.PutUint64(p[16:], l.number)
	le.PutUint64(p[24:], l.round)
	le.PutUint64(p[32:], uint64(l.state))
	le.PutUint32(p[40:], l.names)
	p[44] = mark
	if _, err := unix.Pwrite(t.file, p[:], slot*slotSize); err != nil {
		return fmt.Errorf("write lists of files in %s: %w", t.dir, err)
	}
	return nil
}

// move puts what is in memory on disk.
func (t *linkTable) move(slots int64) error {
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
		if err := t.put(key, l); err != nil {
			return err
		}
	}
	t.memory = nil
	return nil
}

// grow makes a larger table of those that are still in use.
func (t *linkTable) grow() error {
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
			if err := t.put(key, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// load returns what is known of an inode.
func (t *linkTable) load(l linked) (k known, err error) {
	var length [4]byte
	if err := t.states.readAt(length[:], l.state); err != nil {
		return k, err
	}
	p := make([]byte, binary.LittleEndian.Uint32(length[:]))
	if err := t.states.readAt(p, l.state+4); err != nil {
		return k, err
	}
	(&knownReader{p}).next(&k)
	return k, nil
}

// keep notes what is known of an inode, and where.
func (t *linkTable) keep(l *linked, k *known) (err error) {
	p := k.appendTo(make([]byte, 4, 512))
	binary.LittleEndian.PutUint32(p, uint32(len(p)-4))
	l.state, err = t.states.append(p)
	return err
}
