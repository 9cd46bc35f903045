package memory

import (
	"encoding/binary"

	"github.com/godwit/godwit/internal/kernel"
)

// maxLooked bounds in how many pages Soon looks for pointers: a millisecond or two.
const maxLooked = 256

// wordBytes is the size of a pointer.
const wordBytes = 8

// Soon lists the remote pages that are used next, at most so many: those of the touched ones that are
// (still) remote, and then those to which there are pointers in the touched ones, in the order in
// which they are found. Of what Go programs and a shell used after the pages that
// engine.Departure.Touched tells, every third to fifth one was among these, of which there were
// less than a hundred. It is for when a final round has been.
func (s *Source) Soon(touched []RemoteFault, most int) ([]RemoteFault, error) {
	byID, size := s.byID(), uint64(PageSize())
	look := &looking{most: most, listed: map[RemoteFault]bool{}}
	var there []RemoteFault
	for _, w := range touched {
		w.Address &^= size - 1
		if t := byID[w.Task]; t != nil && t.held.has(w.Address) && len(there) < maxLooked {
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

// looking is a list of remote pages in the making.
type looking struct {
	most   int
	listed map[RemoteFault]bool
	found  []RemoteFault
}

// list adds a page if it is remote and is not listed.
func (l *looking) list(t *task, w RemoteFault) {
	if len(l.found) == l.most || !t.remote.has(w.Address) || !t.held.has(w.Address) || l.listed[w] {
		return
	}
	l.listed[w] = true
	l.found = append(l.found, w)
}
