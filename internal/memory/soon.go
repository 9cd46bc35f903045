package memory

import (
	"encoding/binary"

	"github.com/godwit/godwit/internal/kernel"
)

// maxLooked bounds the number of pages that Soon searches for pointers, which takes a millisecond or two.
const maxLooked = 256

// wordBytes is the size of a pointer.
const wordBytes = 8

// Soon lists at most this many remote pages that are used next: touched pages that are (still) remote, and
// then pages to which the touched ones have pointers, in the order in which these are found. Of the pages
// that Go programs and a shell used after those of engine.Departure.Touched, every third to fifth was among
// these, of which there were less than a hundred. Call it after a final round.
func (s *Source) Soon(touched []RemoteFault, most int) ([]RemoteFault, error) {
	byID, size := s.tasks.byID(), uint64(PageSize())
	look := &looking{most: most, listed: map[RemoteFault]bool{}}
	var there []RemoteFault
	for _, w := range touched {
		w.Address &^= size - 1
		if t := byID[w.Task]; t != nil && t.held.Has(w.Address) && len(there) < maxLooked {
			there = append(there, w)
			look.list(t, w)
		}
	}
	page := make([]byte, size)
	looked := map[RemoteFault]bool{}
	for _, w := range there {
		if looked[w] {
			continue
		}
		looked[w] = true
		t := byID[w.Task]
		n, err := t.read([]kernel.PageRange{{Start: w.Address, End: w.Address + size}}, page)
		if err != nil {
			return nil, t.describe(err)
		}
		for at := 0; at < n; at += wordBytes {
			if address := binary.NativeEndian.Uint64(page[at:]); address >= lowestAddress &&
				address < maxAddress {
				look.list(t, RemoteFault{Task: w.Task, Address: address &^ (size - 1)})
			}
		}
	}
	return look.found, nil
}

// looking is a list of remote pages being made.
type looking struct {
	most   int
	listed map[RemoteFault]bool
	found  []RemoteFault
}

// list adds a page if it is remote and is not listed.
func (l *looking) list(t *task, w RemoteFault) {
	if len(l.found) == l.most || !t.remote.Has(w.Address) || !t.held.Has(w.Address) || l.listed[w] {
		return
	}
	l.listed[w] = true
	l.found = append(l.found, w)
}
