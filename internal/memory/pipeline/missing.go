package pipeline

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/memory"
)

// maxMissing bounds the number of pages recorded as missing: 1 GiB of 4 KiB pages. More are not worth
// another attempt.
const maxMissing = 1 << 18

// spot is a page of a task.
type spot struct {
	task    memory.Task
	address uint64
}

// missing are the pages that the sender believes here, but that are missing.
type missing map[spot]struct{}

// lost records that a record's pages could not be placed.
func (m missing) lost(one record) error {
	size := uint64(memory.PageSize())
	for i := range uint64(one.pages) {
		if len(m) == maxMissing {
			return fmt.Errorf("%w: more than %d of them", ErrMissing, maxMissing)
		}
		m[spot{one.task, one.address + i*size}] = struct{}{}
	}
	return nil
}

// found records that pages have come.
func (m missing) found(one record) {
	if len(m) == 0 {
		return
	}
	size := uint64(memory.PageSize())
	for i := range uint64(one.pages) {
		delete(m, spot{one.task, one.address + i*size})
	}
}

// forget drops the pages of a task.
func (m missing) forget(task memory.Task) {
	for s := range m {
		if s.task == task {
			delete(m, s)
		}
	}
}

// maps lists the pages in order.
func (m missing) maps() []memory.TaskMap {
	if len(m) == 0 {
		return nil
	}
	all := make([]spot, 0, len(m))
	for s := range m {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b spot) int {
		return cmp.Or(cmp.Compare(a.task, b.task), cmp.Compare(a.address, b.address))
	})
	var maps []memory.TaskMap
	for _, s := range all {
		if n := len(maps); n == 0 || maps[n-1].Task != s.task {
			maps = append(maps, memory.TaskMap{Task: s.task})
		}
		areas := &maps[len(maps)-1].Areas
		if n := len(*areas); n > 0 && (*areas)[n-1].Start+
			(*areas)[n-1].Pages*uint64(memory.PageSize()) == s.address {
			(*areas)[n-1].Pages++
			continue
		}
		*areas = append(*areas, memory.Area{Start: s.address, Pages: 1})
	}
	return maps
}
