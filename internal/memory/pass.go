package memory

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// pass goes once over the pages of a process, in a round, and sends those that were written.
type pass struct {
	t        *task
	r        *reader
	ordering ordering
}

// sendInOrder sends the written pages of all mappings as they are found.
func (p pass) sendInOrder(ctx context.Context, areas []area) error {
	for _, m := range areas {
		if err := p.sendArea(ctx, m); err != nil {
			return err
		}
	}
	p.r.stats.TakenAlong += p.t.along.Count()
	p.t.along = nil
	return nil
}

// begin prepares reading pages of a mapping that the tracker has found.
func (p pass) begin() {
	t := p.t
	p.r.begin(t, func(address uint64, content []byte) bool {
		t.direct.remember(address, content)
		return t.tracker.changed(address, content)
	})
}

func (p pass) sendArea(ctx context.Context, m area) error {
	t, r := p.t, p.r
	p.begin()
	err := t.tracker.written(t.pagemap, m, func(ranges []kernel.PageRange) error {
		t.direct.note(ranges, time.Now())
		t.holdToo(ranges)
		for _, one := range ranges {
			t.along.Remove(one.Start, one.End)
		}
		return r.add(ctx, ranges)
	})
	if err == nil {
		err = r.flush(ctx)
	}
	if err != nil || !t.direct.used {
		return err
	}
	r.begin(t, func(address uint64, content []byte) bool {
		if !t.direct.known.changed(address, content) {
			return false
		}
		t.tracker.changed(address, content) // the tracker must know, too: the earlier content may come back
		return true
	})
	err = t.direct.again(m, func(one kernel.PageRange) error { return r.add(ctx, []kernel.PageRange{one}) })
	if err != nil {
		return err
	}
	return r.flush(ctx)
}
