package memory

import (
	"fmt"

	"github.com/godwit/godwit/internal/kernel"
)

// Tracking is a way to find out which pages a process has written.
type Tracking string

// Ways of tracking, the best first. A process with which one does not work is tracked by the next.
const (
	// WriteProtect is asynchronous write-protection by a userfaultfd that is opened in the process
	// (Linux 6.7; 6.10 on arm64).
	WriteProtect Tracking = "write-protect"
	// SoftDirty are the kernel's soft-dirty notes. Nothing is done in the process. What was written
	// once is read in each round until it pays to begin anew; it takes 6 MiB for each GiB, and does
	// not work beside another user of the notes.
	SoftDirty Tracking = "soft-dirty"
	// Hashing asks nothing of the kernel: all pages are read and compared in each round.
	Hashing Tracking = "hashing"
)

// BestTracking is the best that this machine's kernel can do, and why not better; nil if there is
// nothing better.
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

// softDirty follows a process by the kernel's soft-dirty notes.
//
// The notes cannot be read and renewed in one step, and a page that is written between the two
// would be lost. So they are renewed first, then all pages are read, and from then on in each round
// those that were written since, again and again; what was not written anew is known by its hash.
// When more was read in vain than there is, it begins anew. The process is never stopped for it.
type softDirty struct {
	*hashing
	space    *kernel.AddressSpace
	frames   *kernel.Frames
	complete bool // all pages were read since the notes were renewed
	all      bool // all pages are read in this round
	pages    int  // that were read when all were
	vain     int  // read since then and not changed
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
	if frozen { // notes that were not renewed are too many, never too few
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
