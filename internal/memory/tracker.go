package memory

import (
	"errors"
	"hash/maphash"

	"github.com/godwit/godwit/internal/kernel"
)

// scanPages is how many pages a scan looks for at a time: 8 MiB of 4 KiB pages. They are read at once, so
// with a small number, fewer are written in between, and with a large one, there are fewer system calls.
const scanPages = 2048

// tracker finds the written pages of one process. There is one implementation for each way in which a
// kernel can report them, and one for processes without such a report. It is for one goroutine.
type tracker interface {
	// begin begins a round. It must change no mapping of frozen processes: another program may be reading
	// their list.
	begin(frozen bool) error
	// written calls found for the pages of a mapping that may have been written since the last call for
	// them; the first call reports all existing pages. Ranges ascend and are valid until found returns.
	written(pagemap *kernel.Pagemap, m area, found func([]kernel.PageRange) error) error
	// changed reports whether a page that written has reported has to be sent, after it was read.
	changed(address uint64, content []byte) bool
	// compares reports whether what written has reported of the last mapping may be unchanged, so that it
	// has to be read to know.
	compares() bool
	// counts says that the pages read next were reported for mappings that need not be compared, whatever
	// the last one was.
	counts()
	// recent reports whether what written has reported of the last mapping was written since the last
	// round, and not just exists.
	recent() bool
	// end says that all of the round's pages have been read.
	end()
	// close ends the tracking, and leaves nothing in the process.
	close() error
}

// errStale means that a process has other memory than the tracker was made for: it has called execve.
var errStale = errors.New("the process has new memory")

// hashing compares all pages with what it remembers of them. It needs nothing from the kernel or the
// process.
type hashing struct {
	known digests
	seeds [2]maphash.Seed
}

func newHashing() *hashing {
	return &hashing{known: digests{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
}

func (h *hashing) begin(bool) error { return nil }

func (h *hashing) compares() bool { return true }

func (h *hashing) counts() {}

func (h *hashing) recent() bool { return false }

func (h *hashing) end() {}

func (h *hashing) written(pagemap *kernel.Pagemap, m area, found func([]kernel.PageRange) error) error {
	_, err := scan(m.Start, m.End, pagemap.Existing, found)
	return err
}

func (h *hashing) changed(address uint64, content []byte) bool {
	return h.known.changed(address, h.digest(content))
}

func (h *hashing) close() error { return nil }

func countPages(ranges []kernel.PageRange) (n uint64) {
	for _, r := range ranges {
		n += (r.End - r.Start) / uint64(PageSize())
	}
	return n
}

// lookFunc is a method of kernel.Pagemap.
type lookFunc func(start, end, pages uint64) (ranges []kernel.PageRange, next uint64, err error)

// scan scans a range of addresses, and returns how far it came. With many pages it proceeds in steps that
// end between huge pages, because the kernel splits a huge page that is write-protected in part.
func scan(at, end uint64, look lookFunc, found func([]kernel.PageRange) error) (uint64, error) {
	step, huge := uint64(scanPages*PageSize()), uint64(chunkPages*PageSize())
	for many := true; at < end; {
		to := end
		if many {
			to = min(end, (at+step)/huge*huge)
		}
		ranges, next, err := look(at, to, scanPages)
		if err != nil {
			return at, err
		}
		many = countPages(ranges) >= scanPages/2
		if len(ranges) > 0 {
			if err := found(ranges); err != nil {
				return at, err
			}
		}
		at = next
	}
	return at, nil
}
