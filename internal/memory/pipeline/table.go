package pipeline

import (
	"errors"

	"github.com/godwit/godwit/internal/memory"
)

// chunkPages is the number of pages that the table keeps together: few enough that a mapping of a few pages
// costs little, and enough that the map of chunks is negligible.
const chunkPages = 64

// pageID is the number of a page in the table: that of its chunk and that within it.
type pageID uint32

// maxChunks is the number of chunks that page numbers can distinguish, minus one: 0 is no page in the
// index. That is 16 TiB.
const maxChunks = 1<<32/chunkPages - 1

var errTooManyPages = errors.New("there are more pages than the pipeline can number")

// place is the place of a chunk: in the receiver's store, or in what it had before.
type place struct {
	task   memory.Task
	base   bool
	number uint64 // address in chunks
}

// location is the place of a page.
type location struct {
	task    memory.Task
	base    bool
	address uint64
}

type chunk [chunkPages]Digest

// table knows the digest of each page that the receiver has, and finds pages by it.
//
// The index has open addressing: a page's number, plus one, is in the first free slot from the one that its
// digest selects. It holds one page for each content, and no zero page.
type table struct {
	size   uint64 // of a page
	zero   Digest
	chunks []*chunk // nil for dropped chunks
	spots  []place  // of chunks
	unused []uint32 // numbers of dropped chunks
	places map[place]uint32
	last   place // the last requested chunk, and its number plus one
	lastAt uint32

	index []uint32
	used  int
}

const minIndex = 1 << 12

func newTable(zero Digest) *table {
	return &table{size: uint64(memory.PageSize()), zero: zero, places: map[place]uint32{},
		index: make([]uint32, minIndex)}
}

// at returns the number of a page, and assigns one if necessary.
func (t *table) at(l location) (pageID, error) {
	page := l.address / t.size
	p := place{l.task, l.base, page / chunkPages}
	if t.lastAt == 0 || t.last != p {
		number, known := t.places[p]
		if !known {
			var err error
			if number, err = t.add(p); err != nil {
				return 0, err
			}
		}
		t.last, t.lastAt = p, number+1
	}
	return pageID(t.lastAt-1)*chunkPages + pageID(page%chunkPages), nil
}

func (t *table) add(p place) (uint32, error) {
	number := uint32(len(t.chunks))
	if n := len(t.unused); n > 0 {
		number, t.unused = t.unused[n-1], t.unused[:n-1]
		t.chunks[number], t.spots[number] = &chunk{}, p
	} else {
		if len(t.chunks) == maxChunks {
			return 0, errTooManyPages
		}
		t.chunks, t.spots = append(t.chunks, &chunk{}), append(t.spots, p)
	}
	t.places[p] = number
	return number, nil
}

// where returns the page with a number.
func (t *table) where(id pageID) location {
	p := t.spots[id/chunkPages]
	return location{p.task, p.base, (p.number*chunkPages + uint64(id%chunkPages)) * t.size}
}

func (t *table) digest(id pageID) Digest { return t.chunks[id/chunkPages][id%chunkPages] }

// lookUp returns the number of a page that has one. It changes nothing.
func (t *table) lookUp(l location) (pageID, bool) {
	page := l.address / t.size
	number, known := t.places[place{l.task, l.base, page / chunkPages}]
	return pageID(number)*chunkPages + pageID(page%chunkPages), known
}

// has reports whether the receiver has this content at a place.
func (t *table) has(l location, d Digest) bool {
	id, known := t.lookUp(l)
	return known && t.digest(id) == d
}

func (t *table) findable(d Digest) bool { return d != Digest{} && d != t.zero }

// find returns a page with this content.
func (t *table) find(d Digest) (pageID, bool) {
	mask := uint64(len(t.index) - 1)
	for i := d[0] & mask; t.index[i] != 0; i = (i + 1) & mask {
		if id := pageID(t.index[i] - 1); t.digest(id) == d {
			return id, true
		}
	}
	return 0, false
}

// set records the receiver's content of a page.
func (t *table) set(id pageID, d Digest) {
	at := &t.chunks[id/chunkPages][id%chunkPages]
	if *at == d {
		return
	}
	t.unlist(id, *at)
	*at = d
	if t.findable(d) {
		t.list(id, d)
	}
}

func (t *table) list(id pageID, d Digest) {
	if 4*(t.used+1) > 3*len(t.index) {
		t.grow() // with id, which already has its digest
	}
	mask := uint64(len(t.index) - 1)
	i := d[0] & mask
	for ; t.index[i] != 0; i = (i + 1) & mask {
		if t.digest(pageID(t.index[i]-1)) == d {
			return
		}
	}
	t.index[i] = uint32(id) + 1
	t.used++
}

// grow makes the index twice as large.
func (t *table) grow() {
	old := t.index
	t.index = make([]uint32, 2*len(old))
	mask := uint64(len(t.index) - 1)
	for _, entry := range old {
		if entry == 0 {
			continue
		}
		i := t.digest(pageID(entry - 1))[0] & mask
		for t.index[i] != 0 {
			i = (i + 1) & mask
		}
		t.index[i] = entry
	}
}

// unlist removes a page from the index if the index finds it by its digest.
func (t *table) unlist(id pageID, d Digest) {
	if !t.findable(d) {
		return
	}
	mask := uint64(len(t.index) - 1)
	i := d[0] & mask
	for t.index[i] != uint32(id)+1 {
		if t.index[i] == 0 {
			return
		}
		i = (i + 1) & mask
	}
	// The following entries, up to a gap, move up unless they would come before their own slots (Knuth, The
	// Art of Computer Programming, volume 3, section 6.4, algorithm R).
	for j := (i + 1) & mask; t.index[j] != 0; j = (j + 1) & mask {
		home := t.digest(pageID(t.index[j] - 1))[0] & mask
		if (j-home)&mask >= (j-i)&mask {
			t.index[i], i = t.index[j], j
		}
	}
	t.index[i] = 0
	t.used--
}

// forget drops all pages of some chunks, and calls dropped for each.
func (t *table) forget(which func(place) bool, dropped func(pageID)) {
	for p, number := range t.places {
		if !which(p) {
			continue
		}
		for i, d := range t.chunks[number] {
			if id := pageID(number)*chunkPages + pageID(i); d != (Digest{}) {
				t.set(id, Digest{})
				dropped(id)
			}
		}
		delete(t.places, p)
		t.chunks[number] = nil
		t.unused = append(t.unused, number)
	}
	t.lastAt = 0
}
