package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// batchPages is how many pages are read at a time: 1 MiB of 4 KiB pages stays in a core's cache until it is
// sent.
const batchPages = 256

// reader reads pages of one process after the other and passes them on. It holds one batch, however many
// pages it gets.
type reader struct {
	sink    Sink
	stats   *RoundStats
	zeros   []byte
	buffer  []byte
	ranges  []kernel.PageRange
	pages   int
	task    *task
	remote  *atomic.Bool // if true, pages of processes are left, and not sent; nil: never
	changed func(address uint64, content []byte) bool
}

func newReader(sink Sink, stats *RoundStats) *reader {
	return &reader{
		sink: sink, stats: stats, zeros: make([]byte, PageSize()),
		buffer: make([]byte, batchPages*PageSize()),
		ranges: make([]kernel.PageRange, 0, kernel.MaxReadRanges),
	}
}

// begin sets the process of the next pages, and a function that says which pages to send after they were
// read.
func (r *reader) begin(t *task, changed func(uint64, []byte) bool) { r.task, r.changed = t, changed }

// leaving reports whether pages are left. It may begin at any moment.
func (r *reader) leaving() bool { return r.remote != nil && r.remote.Load() && !r.task.id.IsObject() }

// add takes pages of one mapping, and reads when the batch is full.
func (r *reader) add(ctx context.Context, ranges []kernel.PageRange) error {
	for _, one := range ranges {
		if one.Categories&kernel.PageZero != 0 {
			continue // it was only read: not sent, and not in the map
		}
		for one.Start < one.End && !r.leaving() {
			if err := r.take(ctx, &one); err != nil {
				return err
			}
		}
		if one.Start == one.End {
			continue
		}
		for _, unsure := range r.task.leave(one, r.stats) {
			for unsure.Start < unsure.End {
				if err := r.take(ctx, &unsure); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// take takes as much of a range as fits into the batch.
func (r *reader) take(ctx context.Context, from *kernel.PageRange) error {
	size := uint64(PageSize())
	part := *from
	part.End = min(part.End, part.Start+uint64(batchPages-r.pages)*size)
	r.ranges = append(r.ranges, part)
	r.pages += int((part.End - part.Start) / size)
	from.Start = part.End
	if r.pages < batchPages && len(r.ranges) < kernel.MaxReadRanges {
		return nil
	}
	return r.flush(ctx)
}

// flush reads and sends the added pages. It skips pages that are gone.
func (r *reader) flush(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	size := uint64(PageSize())
	rest := r.ranges
	for r.pages > 0 {
		start := time.Now()
		n, err := r.task.read(rest, r.buffer[:r.pages*int(size)])
		r.stats.Read += time.Since(start)
		if err != nil {
			return err
		}
		if rest, err = r.emit(rest, n/int(size)); err != nil {
			return err
		}
		if len(rest) == 0 {
			break
		}
		if err := r.forced(rest[0].Start); err != nil {
			return err
		}
		rest = skip(rest, size)
		r.pages--
	}
	r.ranges, r.pages = r.ranges[:0], 0
	return nil
}

// skip skips the first bytes of ranges, and changes the first range.
func skip(ranges []kernel.PageRange, bytes uint64) []kernel.PageRange {
	for len(ranges) > 0 && bytes > 0 {
		part := min(bytes, ranges[0].End-ranges[0].Start)
		ranges[0].Start += part
		bytes -= part
		if ranges[0].Start == ranges[0].End {
			ranges = ranges[1:]
		}
	}
	return ranges
}

// forced tries a page that could not be read in the usual way: the process itself may not read it, or it is
// gone.
func (r *reader) forced(address uint64) error {
	page := r.buffer[:PageSize()]
	there, err := r.task.reader.ReadForced(address, page)
	if err != nil {
		return err
	}
	if !there {
		if there, err = r.task.unreadable(address, page); err != nil {
			return err
		}
	}
	if !there { // whatever replaces it will be found, unless it is a guard
		r.stats.Gone++
		end := address + uint64(len(page))
		r.task.sent.Remove(address, end)
		r.task.remote.Remove(address, end)
		return nil
	}
	return r.emitRange(address, page)
}

// readTries is how often a page must be found to exist but not be readable before that counts as true.
const readTries = 5

// errUnreadable is the error for an existing page that nobody can read. Without it, the container would
// find zeros at the target.
var errUnreadable = errors.New("it cannot be read: it was lost in an earlier migration (--missing-pages " +
	"fail), or the machine's memory has failed; " +
	"the container can only move without its memory, if its engine is Godwit's own: --mode restart")

// unreadable checks a page again that could not be read. If its mapping was gone, the page no longer
// exists, or is another page that can be read. On a kernel that does not report guards, it may be a guard.
func (t *task) unreadable(address uint64, page []byte) (there bool, err error) {
	for range readTries {
		exists, err := t.pagemap.Exists(address)
		if err != nil || !exists || !t.pagemap.TellsGuards() {
			return false, err
		}
		if there, err := t.reader.ReadForced(address, page); err != nil || there {
			return there, err
		}
	}
	return false, fmt.Errorf("page at %#x: %w", address, errUnreadable)
}

// emit sends the first pages of the ranges, whose content is in the buffer, and returns the rest of the
// ranges.
func (r *reader) emit(ranges []kernel.PageRange, pages int) ([]kernel.PageRange, error) {
	size := uint64(PageSize())
	data := r.buffer[:pages*int(size)]
	r.pages -= pages
	for len(data) > 0 {
		part := min(uint64(len(data)), ranges[0].End-ranges[0].Start)
		if err := r.emitRange(ranges[0].Start, data[:part]); err != nil {
			return nil, err
		}
		data = data[part:]
		ranges = skip(ranges, part)
	}
	return ranges, nil
}

// Kinds of pages in a batch.
const (
	unchangedPage = iota
	zeroPage
	contentPage
	noPage
)

func (r *reader) kind(address uint64, page []byte) int {
	zero := bytes.Equal(page, r.zeros)
	switch {
	case !r.changed(address, page):
		return unchangedPage
	case zero:
		return zeroPage
	default:
		return contentPage
	}
}

// emitRange sends consecutive pages in as few runs as possible.
func (r *reader) emitRange(address uint64, data []byte) error {
	size := PageSize()
	from, kind := 0, r.kind(address, data[:size])
	for to := size; to <= len(data); to += size {
		next := noPage
		if to < len(data) {
			next = r.kind(address+uint64(to), data[to:to+size])
		}
		if next == kind {
			continue
		}
		if err := r.send(kind, address+uint64(from), data[from:to]); err != nil {
			return err
		}
		from, kind = to, next
	}
	return nil
}

func (r *reader) send(kind int, address uint64, data []byte) error {
	if kind == contentPage && r.leaving() {
		r.task.changedRemote(kernel.PageRange{Start: address, End: address + uint64(len(data))}, r.stats)
		return nil
	}
	pages := uint32(len(data) / PageSize())
	r.task.sent.Add(address, address+uint64(len(data)))
	run := Run{Task: r.task.id, Address: address, Pages: pages, Zero: kind == zeroPage}
	switch kind {
	case unchangedPage:
		r.stats.UnchangedPages += uint64(pages)
		return nil
	case zeroPage:
		r.stats.ZeroPages += uint64(pages)
		data = nil
	}
	r.stats.Pages += uint64(pages)
	r.task.carried = true
	start := time.Now()
	err := r.sink.Put(run, data)
	r.stats.Write += time.Since(start)
	return err
}

// drop forgets pages that were added and not read.
func (r *reader) drop() { r.ranges, r.pages = r.ranges[:0], 0 }
