package postcopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// A batch of pages takes leastBatchTime to mostBatchTime on the link, so that a page that is requested
// after it was given out arrives soon, and so that the pages requested around it leave soon.
const (
	leastBatch     = 16
	mostBatch      = memory.MaxRunPages
	batchTime      = 4 * time.Millisecond
	leastBatchTime = 2 * time.Millisecond
	mostBatchTime  = 5 * time.Millisecond
	// readPages is how many pages are read at once: the first of a batch leave while the others are read.
	readPages = 32
	// mostRead is the maximum number of pages read for a batch, if most of them take no room in it.
	mostRead = 4096
	// runBytes is the overhead of a run.
	runBytes = 16
)

// answer sends the target the pages that it requests.
func (v *serving) answer(ctx context.Context) error {
	select {
	case <-v.known:
	case <-ctx.Done():
		_, err := v.urgent.Next() // the peer may give the reason for its end
		return during("hear which pages are requested", err)
	}
	buffer, page := make([]byte, maxFaults*faultBytes+1), make([]byte, memory.PageSize())
	var faults []memory.RemoteFault
	for {
		next, err := v.urgent.Next()
		if errors.Is(err, io.EOF) {
			return during("end the urgent connection", v.urgent.Finish())
		}
		if err == nil && next.Kind != kindFault {
			err = unknown(next)
		}
		if err == nil {
			faults, err = decodeFaults(next, buffer, faults[:0])
		}
		if err != nil {
			return during("hear which pages are requested", err)
		}
		v.pulse.beat()
		if faults, err = v.faulted(faults); err != nil {
			return err
		}
		if err := v.give(faults, page); err != nil {
			return err
		}
	}
}

// faulted moves the queue to where the target is, and keeps the faults whose pages have not left yet.
func (v *serving) faulted(faults []memory.RemoteFault) ([]memory.RemoteFault, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	kept := faults[:0]
	for _, w := range faults {
		ours, err := v.queue.fault(w)
		if err != nil {
			return nil, peerError("it asks for a page that is not remote: %w", err)
		}
		if ours {
			kept = append(kept, w)
		}
	}
	v.leftChanged()
	v.tally.update(func(t *Stats) {
		t.Faults += int64(len(faults))
		t.UnderWayFaults += int64(len(faults) - len(kept))
	})
	return kept, nil
}

// give sends requested pages.
func (v *serving) give(faults []memory.RemoteFault, page []byte) error {
	if len(faults) == 0 {
		return nil
	}
	out := v.outlet(v.urgent, true)
	for _, w := range faults {
		if err := out.send(piece{task: w.Task, address: w.Address, pages: 1}, page); err != nil {
			return err
		}
	}
	if err := out.end(); err != nil {
		return err
	}
	return during("send requested pages", v.urgent.Push())
}

// send pushes everything that is left, in the order of the queue.
func (v *serving) send(ctx context.Context) error {
	select {
	case <-v.known:
	case <-ctx.Done():
		return nil
	}
	if v.config.Push != nil {
		select {
		case <-v.config.Push:
		case <-v.over:
		case <-ctx.Done():
			return nil
		}
	}
	buffer := make([]byte, readPages*memory.PageSize())
	size := leastBatch
	for {
		select {
		case <-v.over:
			return during("end the push connection", v.push.Finish())
		case <-ctx.Done():
			return nil
		default:
		}
		start := time.Now()
		sent, err := v.pushBatch(v.batch(size), buffer)
		if err != nil {
			return err
		}
		if !sent {
			select {
			case <-v.over:
			case <-ctx.Done():
			}
			continue
		}
		size = nextBatch(size, time.Since(start))
	}
}

func (v *serving) take(most int) []piece {
	v.mu.Lock()
	defer v.mu.Unlock()
	pieces := v.queue.take(most)
	v.leftChanged()
	return pieces
}

// batch returns how many pages to send at once: the session's own answer if it has one, or the link's
// capacity if known, or an adaptive guess.
func (v *serving) batch(size int) int {
	page := memory.PageSize()
	if polite, ok := v.push.(interface{ Batch() int }); ok {
		if bytes := polite.Batch(); bytes > 0 {
			return min(max(bytes/page, 1), mostBatch)
		}
	}
	if link, ok := v.push.(interface{ LinkBitsPerSecond() float64 }); ok {
		if rate := link.LinkBitsPerSecond(); rate > 0 {
			return int(min(max(rate/8*batchTime.Seconds()/float64(page), leastBatch), mostBatch))
		}
	}
	return size
}

// nextBatch adapts the guess to the duration of a batch, if the link is unknown.
func nextBatch(size int, took time.Duration) int {
	switch {
	case took < leastBatchTime:
		return min(2*size, mostBatch)
	case took > mostBatchTime:
		return max(size/2, leastBatch)
	}
	return size
}

// pushBatch sends as many bytes as this many pages have, and waits until the kernel has them. It reports
// whether there was anything to send. Zero pages and pages with few changes take almost nothing, so it may
// send many more pages.
func (v *serving) pushBatch(pages int, buffer []byte) (bool, error) {
	size := memory.PageSize()
	out := v.outlet(v.push, false)
	for read := 0; out.bytes < pages*size && read < mostRead; {
		pieces := v.take(min(max(pages-out.bytes/size, 1), readPages))
		if len(pieces) == 0 {
			break
		}
		for _, p := range pieces {
			read += p.pages
			if err := out.send(p, buffer[:p.pages*size]); err != nil {
				return false, err
			}
		}
	}
	if out.bytes == 0 {
		return false, nil
	}
	if err := out.end(); err != nil {
		return false, err
	}
	return true, during("push pages", v.push.Flush())
}

// outlet writes pages into a section, and changes into another section after it.
type outlet struct {
	*serving
	session Session
	urgent  bool
	encoder *memory.Encoder // nil: there is no section yet
	changes []byte
	bytes   int // so far, in both
}

func (v *serving) outlet(s Session, urgent bool) *outlet {
	return &outlet{serving: v, session: s, urgent: urgent}
}

// send reads pages into buffer, which has their size, and sends them.
func (o *outlet) send(p piece, buffer []byte) error {
	if err := o.config.Pages.Read(p.task, p.address, buffer); err != nil {
		return fmt.Errorf("%w: %d pages at %#x of task %d: %w", ErrSource, p.pages, p.address, p.task, err)
	}
	size, from := memory.PageSize(), 0
	for i := range p.pages {
		page := buffer[i*size : (i+1)*size]
		if !o.serving.changes.Load() || isZero(page) || !o.change(p.task, p.address+uint64(i*size), page) {
			continue
		}
		if err := o.whole(p, from, i, buffer); err != nil {
			return err
		}
		from = i + 1
	}
	return o.whole(p, from, p.pages, buffer)
}

// whole sends pages [from, to) of a piece, zero pages without content.
func (o *outlet) whole(p piece, from, to int, buffer []byte) error {
	size := memory.PageSize()
	for from < to {
		zero, end := isZero(buffer[from*size:(from+1)*size]), from+1
		for end < to && isZero(buffer[end*size:(end+1)*size]) == zero {
			end++
		}
		run, data := memory.Run{Task: p.task, Address: p.address + uint64(from*size),
			Pages: uint32(end - from), Zero: zero}, buffer[from*size:end*size]
		if zero {
			data = nil
		}
		if err := o.run(run, data); err != nil {
			return during("send pages", err)
		}
		from = end
	}
	return nil
}

// run sends a run unchanged.
func (o *outlet) run(run memory.Run, data []byte) error {
	if o.encoder == nil {
		if err := o.session.Begin(kindPages, ""); err != nil {
			return err
		}
		o.encoder = memory.NewEncoder(o.session)
	}
	if err := o.encoder.Put(run, data); err != nil {
		return err
	}
	o.bytes += runBytes + len(data)
	o.tally.carried(run, o.urgent, len(data))
	return nil
}

// change keeps a page for the section of changes, if it has not changed much.
func (o *outlet) change(task memory.Task, address uint64, page []byte) bool {
	before := len(o.changes)
	var short bool
	if o.changes, short = o.changer.append(o.changes, task, address, page); !short {
		return false
	}
	n := len(o.changes) - before
	o.bytes += n
	o.tally.changed(memory.Run{Task: task, Address: address, Pages: 1}, o.urgent, n)
	return true
}

// end ends the sections.
func (o *outlet) end() error {
	if o.encoder != nil {
		if err := o.session.End(); err != nil {
			return during("send pages", err)
		}
	}
	if len(o.changes) == 0 {
		return nil
	}
	return during("send changes of pages", section(o.session, kindChanges, o.changes))
}

// isZero reports whether a page has only zeros.
func isZero(page []byte) bool {
	// Each byte equals the one before, and the first is zero: the library's comparison is the fastest.
	return page[0] == 0 && bytes.Equal(page[1:], page[:len(page)-1])
}
