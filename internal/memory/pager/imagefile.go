package pager

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/memory"
)

// imageFile is the image from which memory is filled.
type imageFile struct {
	image    []memory.ImageSlot // in order of task and address
	data     []byte             // the image's content
	pages    *os.File           // the same as a file
	pageSize int
}

// slotsOf returns the part of the image that belongs to a task.
func (i *imageFile) slotsOf(task memory.Task) []memory.ImageSlot {
	first := slices.IndexFunc(i.image, func(one memory.ImageSlot) bool { return one.Task == task })
	last := first
	for first >= 0 && last < len(i.image) && i.image[last].Task == task {
		last++
	}
	return i.image[max(first, 0):max(last, 0)]
}

// put makes the kernel fill pages at once, as many as it takes.
func (i *imageFile) put(to *space, what stretch, pages int) (int, error) {
	bytes := uint64(pages * i.pageSize)
	var n int
	var err error
	switch what.kind {
	case zeros:
		n, err = to.faults.Zero(what.address, bytes)
	case lost:
		n, err = to.faults.Poison(what.address, bytes)
	default:
		offset := to.offset(what.page)
		n, err = to.faults.Copy(what.address, i.data[offset:offset+bytes])
	}
	return n / i.pageSize, err
}

// free releases the image's memory of pages that are no longer needed there.
func (i *imageFile) free(one *slot) error {
	err := unix.Fallocate(int(i.pages.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
		int64(one.offset), memory.SlotBytes)
	if err != nil {
		return fmt.Errorf("free the memory of filled pages: %w", err)
	}
	return nil
}
