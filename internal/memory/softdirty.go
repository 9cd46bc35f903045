package memory

import "github.com/godwit/godwit/internal/kernel"

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
