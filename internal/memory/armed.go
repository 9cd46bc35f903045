package memory

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// armed makes the kernel record writes, by asynchronous write-protection.
type armed struct {
	protect   *kernel.WriteProtect
	areas     func() ([]area, error) // returns the present mappings
	listed    []area                 // last result of areas in this round; nil: not called
	whole     []kernel.PageRange     // groups of mappings that were registered together
	byHand    *hashing               // for mappings that cannot be registered, or for all
	comparing bool                   // the mapping of the last call is one of these
	frozen    bool
	huge      hugePages
}

// registerTries is how often the same address may be found unregistered right after it was registered.
const registerTries = 8

func (a *armed) begin(frozen bool) error {
	a.frozen, a.listed = frozen, nil
	return nil
}

func (a *armed) compares() bool { return a.comparing }

func (a *armed) counts() { a.comparing = false }

// recent: in the freeze, a compared mapping is a new one.
func (a *armed) recent() bool { return !a.comparing || a.frozen }

func (a *armed) end() {}

func (a *armed) written(pagemap *kernel.Pagemap, m area, found func([]kernel.PageRange) error) error {
	a.comparing = false
	send := found
	found = func(ranges []kernel.PageRange) error {
		a.huge.note(ranges)
		return send(ranges)
	}
	at := m.Start
	for tries := 0; ; tries++ {
		next, err := scan(at, m.End, pagemap.Written, found)
		if !errors.Is(err, unix.EPERM) {
			return err
		}
		// A mapping that is new or was moved, in whole or in part. Everything before it is registered, and
		// was read.
		if next > at {
			at, tries = next, 0
		}
		if tries == registerTries {
			return fmt.Errorf("%w: %w", errStale, err)
		}
		if !a.frozen {
			err = a.register(pagemap, at, tries > 0)
		}
		if errors.Is(err, unix.ENOMEM) {
			return fmt.Errorf("%w: %w", errStale, err)
		}
		if err != nil {
			a.comparing, m.Start = true, at
			return a.byHand.written(pagemap, m, found)
		}
	}
}

// register makes writes to the mapping at an address visible, or to the next mapping.
//
// All registered pages count as written, so register covers only what is new. But a mapping in which the
// range ends is split until the rest is registered, and mremap(2) does not work across mappings. So at
// first the range is everything up to mappings of another kind. Later it ends slightly inside registered
// mappings, which are not split: see newAround.
//
// A program with many libraries has a thousand mappings to register, so they are listed once in a round,
// and again if the list did not help.
func (a *armed) register(pagemap *kernel.Pagemap, at uint64, again bool) error {
	if a.listed == nil || again {
		areas, err := a.areas()
		if err != nil {
			return err
		}
		a.listed = areas
	}
	areas := a.listed
	for i, m := range areas {
		if m.End <= at {
			continue
		}
		low, high := m.low, m.high
		if a.isWhole(m) {
			low, high = newAround(pagemap, areas, i)
		}
		a.whole = append(a.whole, kernel.PageRange{Start: low, End: high})
		err := a.protect.Register(low, high)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) {
			// The range has a mapping that the kernel refuses (MAP_DROPPABLE), or it has changed.
			err = a.protect.Register(m.Start, m.End)
		}
		return err
	}
	return nil // nothing is there any more
}

// isWhole reports whether the surroundings of a mapping were registered before.
func (a *armed) isWhole(m area) bool {
	for _, r := range a.whole {
		if r.Start <= m.Start && m.End <= r.End {
			return true
		}
	}
	return false
}

// registerMargin is how much of a registered mapping is registered again beside a new one: anything mapped
// in the same place meanwhile is most probably not larger.
const registerMargin = 2 << 20

// newAround returns a range with a mapping and all unregistered mappings beside it. The range ends inside
// registered mappings, or between mappings.
func newAround(pagemap *kernel.Pagemap, areas []area, i int) (low, high uint64) {
	m := areas[i]
	low, high = m.low, m.high
	for _, above := range areas[i+1:] {
		if above.Start >= m.high {
			break
		}
		if above.End-above.Start > registerMargin && pagemap.Registered(above.Start) {
			high = above.Start + registerMargin
			break
		}
	}
	for j := i - 1; j >= 0 && areas[j].End > m.low; j-- {
		below := areas[j]
		if below.End-below.Start > registerMargin && pagemap.Registered(below.Start) {
			low = below.End - registerMargin
			break
		}
	}
	return low, high
}

func (a *armed) changed(address uint64, content []byte) bool {
	counts := !a.comparing
	if counts && len(a.byHand.known) == 0 {
		return true
	}
	// The remembered content must be what was sent last, even while the kernel tracks this mapping.
	return a.byHand.changed(address, content) || counts
}

// close ends the write-protection. Page faults of a running process wait for it, 25 ms for each GiB
// present. In steps they would wait less; but each step would split a mapping for a while, and mremap(2)
// fails across mappings.
func (a *armed) close() error {
	err := a.protect.Close()
	a.huge.restore()
	return err
}
