package memory

import (
	"errors"
	"io/fs"

	"github.com/godwit/godwit/internal/kernel"
)

// FilePage is a page that differs from the file that is mapped there.
type FilePage struct {
	Content []byte // valid during the visit
	File    string // the path of the file, as the process sees it
	Offset  uint64 // offset of the page in the file
}

// ChangedFilePages visits the pages of processes that differ from the privately mapped file: mostly what a
// dynamic linker has written, which hardly ever changes. CRIU carries these pages in its images. They are
// read while the processes run, so a page may be inconsistent. A process that is gone has none; visit
// returns whether to continue.
func ChangedFilePages(pids []int, visit func(page FilePage) (more bool)) error {
	for _, pid := range pids {
		more, err := changedPagesOf(pid, visit)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !more {
			return nil
		}
	}
	return nil
}

func changedPagesOf(pid int, visit func(page FilePage) bool) (more bool, err error) {
	space, err := kernel.OpenAddressSpace(pid)
	if err != nil {
		return true, err
	}
	defer func() { _ = space.Close() }()
	mappings, err := space.Mappings()
	if err != nil || len(mappings) == 0 {
		return true, err
	}
	pagemap, err := space.OpenPagemap()
	if err != nil {
		return true, err
	}
	defer func() { _ = pagemap.Close() }()
	reader := space.Reader()
	defer func() { _ = reader.Close() }()
	for _, m := range mappings {
		if !m.File || m.Shared {
			continue
		}
		_, err := scan(m.Start, m.End, pagemap.Changed, func(ranges []kernel.PageRange) error {
			more, err = visitRanges(reader, ranges, func(at uint64, page []byte) bool {
				return visit(FilePage{Content: page, File: m.Name, Offset: m.Offset + at - m.Start})
			})
			if err == nil && !more {
				err = errEnough
			}
			return err
		})
		if err != nil {
			return !errors.Is(err, errEnough), noEnough(err)
		}
	}
	return true, nil
}

var errEnough = errors.New("enough pages were visited")

func noEnough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// visitRanges reads page by page, which keeps copy-on-write pages shared.
func visitRanges(reader *kernel.MemoryReader, ranges []kernel.PageRange,
	visit func(at uint64, page []byte) bool) (more bool, err error) {
	size := uint64(PageSize())
	page := make([]byte, size)
	for _, r := range ranges {
		for at := r.Start; at < r.End; at += size {
			n, err := reader.ReadGently([]kernel.PageRange{{Start: at, End: at + size}}, page)
			if err != nil {
				return true, err
			}
			if n == len(page) && !visit(at, page) {
				return false, nil
			}
		}
	}
	return true, nil
}
