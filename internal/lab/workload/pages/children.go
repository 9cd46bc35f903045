package pages

import (
	"fmt"
	"reflect"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// checkChildren reads the memory of the sleeping processes, and ends them. Their memory is as it was when
// they were made: nothing was written before. Shared memory is common, and was checked.
func (w *world) checkChildren() error {
	for _, pid := range w.children {
		for _, p := range w.parts {
			if w.config.Kind == Shared {
				break
			}
			if err := p.checkIn(pid); err != nil {
				return fmt.Errorf("%s: check the memory of process %d: %w", Command, pid, err)
			}
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return fmt.Errorf("%s: end process %d: %w", Command, pid, err)
		}
		if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
			return fmt.Errorf("%s: wait for process %d: %w", Command, pid, err)
		}
	}
	return nil
}

// checkIn checks the pages of another process at the same addresses.
func (p *part) checkIn(pid int) error {
	space, err := kernel.OpenAddressSpace(pid)
	if err != nil {
		return err
	}
	defer space.Close()
	reader := space.Reader()
	defer reader.Close()
	page := make([]byte, pageSize())
	for i := range uint64(len(p.written)) {
		start := uint64(reflect.ValueOf(p.page(i)).Pointer())
		n, err := reader.Read([]kernel.PageRange{{Start: start, End: start + uint64(len(page))}}, page)
		if err != nil {
			return err
		}
		if n < len(page) {
			return fmt.Errorf("page %d is not there", p.first+i)
		}
		p.tally.checked(p.form.verify(page, p.first+i, 0))
	}
	return nil
}
