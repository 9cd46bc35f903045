package memory

import (
	"fmt"

	"github.com/godwit/godwit/internal/kernel"
)

// Tracking is a way to find out which pages a process has written.
type Tracking string

// Ways of tracking, the best first. If one does not work with a process, the next is used.
const (
	// WriteProtect is asynchronous write-protection by a userfaultfd that is opened in the process
	// (Linux 6.7; 6.10 on arm64).
	WriteProtect Tracking = "write-protect"
	// SoftDirty uses the kernel's soft-dirty records. Nothing is done in the process. A page that was
	// written once is read in each round until it pays to start again. It takes 6 MiB for each GiB, and
	// does not work together with another user of the records.
	SoftDirty Tracking = "soft-dirty"
	// Hashing needs nothing from the kernel: each round reads and compares all pages.
	Hashing Tracking = "hashing"
)

// BestTracking returns the best way that this machine's kernel supports, and why a better one is
// impossible; nil if there is nothing better.
func BestTracking() (Tracking, error) {
	protect := kernel.ProbeWriteProtect()
	if protect == nil {
		return WriteProtect, nil
	}
	if err := kernel.ProbeSoftDirty(); err != nil {
		return Hashing, fmt.Errorf("%w; %w", protect, err)
	}
	return SoftDirty, protect
}

// softDirty tracks a process by the kernel's soft-dirty records.
//
// The records cannot be read and renewed in one step, and a page written between the two would be lost. So
// they are renewed first, and then all pages are read. From then on, each round reads all pages written
// since then; hashes show which of them have not changed again. When more pages were read in vain than
// there are, softDirty starts again. The process is never stopped for it.
type softDirty struct {
	*hashing
	space    *kernel.AddressSpace
	frames   *kernel.Frames
	complete bool // all pages were read since the records were renewed
	all      bool // all pages are read in this round
	pages    int  // number of pages when all were read
	vain     int  // pages read since then without a change
}

func newSoftDirty(space *kernel.AddressSpace) *softDirty {
	return &softDirty{hashing: newHashing(), space: space}
}

func (d *softDirty) begin(frozen bool) error {
	d.all = !d.complete || !frozen && d.vain > d.pages
	if !d.all {
		return nil
	}
	d.complete, d.pages, d.vain, d.frames = false, 0, 0, kernel.NewFrames()
	if frozen { // records that were not renewed are too many, never too few
		return nil
	}
	return d.space.ClearSoftDirty()
}

func (d *softDirty) written(pagemap *kernel.Pagemap, m area, found func([]kernel.PageRange) error) error {
	look := func(start, end, pages uint64) ([]kernel.PageRange, uint64, error) {
		return pagemap.SoftDirty(d.frames, d.all, start, end, pages)
	}
	_, err := scan(m.Start, m.End, look, found)
	return err
}

func (d *softDirty) changed(address uint64, content []byte) bool {
	is := d.hashing.changed(address, content)
	if d.all {
		d.pages++
	} else if !is {
		d.vain++
	}
	return is
}

func (d *softDirty) recent() bool { return !d.all }

func (d *softDirty) end() { d.complete = true }
