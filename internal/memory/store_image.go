package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Image is the content of a store in a form that another process can use: the file with the slots, and an
// index of them. Both are files in memory.
type Image struct {
	Pages *os.File
	Index *os.File
}

// Close closes both files.
func (i *Image) Close() error { return errors.Join(i.Pages.Close(), i.Index.Close()) }

// The index is a header (magic u64, page size u64, number of entries u64) and entries (task u64, address
// u64, offset in the file u64, a bit for each present page, a bit for each remote page, and a bit for each
// present page whose content came more than once), in order of task and address; in the machine's byte
// order.
const (
	imageMagic   = 0x33656761_6d497764 // "dwImage3"
	imageHeader  = 24
	imageEntry   = 24 + 3*len(mask{})*8
	maxImageSize = 1 << 30
)

// Seal ends the store: nothing can be added any more. Its content becomes the returned image, whose size
// nobody can change. The store keeps nothing.
func (s *Store) Seal() (*Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return nil, errSealed
	}
	s.sealed = true
	index, err := makeIndex(s.encodeIndex())
	if err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	err = s.file.Truncate(s.size)
	if err == nil {
		_, err = unix.FcntlInt(s.file.Fd(), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("seal the store of pages: %w", err), index.Close())
	}
	if err := s.keepBefore(); err != nil {
		return nil, errors.Join(err, index.Close())
	}
	image := &Image{Pages: s.file, Index: index}
	s.file, s.tasks = nil, nil
	return image, nil
}

func (s *Store) encodeIndex() []byte {
	b := make([]byte, imageHeader, imageHeader+len(s.tasks)*imageEntry)
	entries := uint64(0)
	tasks := make([]Task, 0, len(s.tasks))
	for task := range s.tasks {
		tasks = append(tasks, task)
	}
	slices.Sort(tasks)
	for _, task := range tasks {
		slots := s.tasks[task]
		addresses := make([]uint64, 0, len(slots))
		for address, one := range slots {
			if one.counted() > 0 {
				addresses = append(addresses, address)
			}
		}
		slices.Sort(addresses)
		for _, address := range addresses {
			one := slots[address]
			for _, word := range [...]uint64{uint64(task), address, uint64(one.offset)} {
				b = binary.NativeEndian.AppendUint64(b, word)
			}
			for _, bits := range [...]*mask{&one.have, &one.remote} {
				for _, word := range bits {
					b = binary.NativeEndian.AppendUint64(b, word)
				}
			}
			for i, word := range one.again {
				b = binary.NativeEndian.AppendUint64(b, word&one.have[i])
			}
			entries++
		}
	}
	binary.NativeEndian.PutUint64(b[0:], imageMagic)
	binary.NativeEndian.PutUint64(b[8:], uint64(PageSize()))
	binary.NativeEndian.PutUint64(b[16:], entries)
	return b
}

func makeIndex(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("godwit-index", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make an index of pages: %w", err)
	}
	file := os.NewFile(uintptr(fd), "index")
	if _, err := file.Write(data); err != nil {
		return nil, errors.Join(fmt.Errorf("make an index of pages: %w", err), file.Close())
	}
	return file, nil
}

// ImageSlot is a part of a task's address space in an image. Have has a bit for each present page from
// Address on; the page is at the same distance from Offset in the image. Remote has a bit for each page
// that comes after the restore, for which the image has room; until then the content there is meaningless.
// Again has a bit for each page of Have that was sent more than once, because the container wrote to it
// meanwhile.
type ImageSlot struct {
	Task    Task
	Address uint64
	Offset  uint64
	Have    [len(mask{})]uint64
	Remote  [len(mask{})]uint64
	Again   [len(mask{})]uint64
}

// SlotBytes is the size of the part of an address space that a slot covers. Its address is a multiple of it.
const SlotBytes = slotBytes

// ReadIndex reads the index. Its result is in order of task and address, and within the image.
func (i *Image) ReadIndex() ([]ImageSlot, error) {
	info, err := i.Pages.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the index of pages: %w", err)
	}
	data, err := io.ReadAll(io.NewSectionReader(i.Index, 0, maxImageSize))
	if err != nil {
		return nil, fmt.Errorf("read the index of pages: %w", err)
	}
	slots, err := decodeIndex(data, uint64(info.Size()))
	if err != nil {
		return nil, fmt.Errorf("read the index of pages: %w", err)
	}
	return slots, nil
}

func decodeIndex(data []byte, size uint64) ([]ImageSlot, error) {
	if len(data) < imageHeader || binary.NativeEndian.Uint64(data) != imageMagic {
		return nil, fmt.Errorf("%w: it is none", ErrMalformed)
	}
	if page := binary.NativeEndian.Uint64(data[8:]); page != uint64(PageSize()) {
		return nil, fmt.Errorf("%w: of pages of %d bytes", ErrMalformed, page)
	}
	entries, data := binary.NativeEndian.Uint64(data[16:]), data[imageHeader:]
	if uint64(len(data))%uint64(imageEntry) != 0 || uint64(len(data))/uint64(imageEntry) != entries {
		return nil, fmt.Errorf("%w: %d entries in %d bytes", ErrMalformed, entries, len(data))
	}
	slots := make([]ImageSlot, entries)
	for n := range slots {
		entry := data[n*imageEntry:]
		one := &slots[n]
		task := binary.NativeEndian.Uint64(entry)
		one.Task, one.Address = Task(task), binary.NativeEndian.Uint64(entry[8:])
		one.Offset = binary.NativeEndian.Uint64(entry[16:])
		for w := range one.Have {
			one.Have[w] = binary.NativeEndian.Uint64(entry[24+8*w:])
			one.Remote[w] = binary.NativeEndian.Uint64(entry[24+8*(len(one.Have)+w):])
			one.Again[w] = binary.NativeEndian.Uint64(entry[24+8*(2*len(one.Have)+w):])
		}
		if task == 0 || task > maxTask || one.Address%slotBytes != 0 || one.Address >= maxAddress ||
			one.Offset%slotBytes != 0 || one.Offset >= size || size-one.Offset < slotBytes || !one.fits() {
			return nil, fmt.Errorf("%w: entry %d", ErrMalformed, n)
		}
		if n > 0 && !slots[n-1].before(one) {
			return nil, fmt.Errorf("%w: entry %d is out of order", ErrMalformed, n)
		}
	}
	return slots, nil
}

// fits checks that there are no bits beyond the slot's pages, that no page is both present and remote, and
// that all pages of Again are present.
func (s *ImageSlot) fits() bool {
	have, remote := mask(s.Have), mask(s.Remote)
	for i := range have {
		if have[i]&remote[i] != 0 || s.Again[i]&^have[i] != 0 {
			return false
		}
	}
	for page := slotBytes / PageSize(); page < len(have)*maskBits; page++ {
		if have.has(page) || remote.has(page) {
			return false
		}
	}
	return true
}

func (s *ImageSlot) before(other *ImageSlot) bool {
	return s.Task < other.Task || s.Task == other.Task && s.Address < other.Address
}

// Pages counts the pages of a slot, present and remote.
func (s *ImageSlot) Pages() int {
	m := mask(s.Have)
	return m.count() + s.RemotePages()
}

// RemotePages counts the remote pages of a slot.
func (s *ImageSlot) RemotePages() int {
	m := mask(s.Remote)
	return m.count()
}
