package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// OpenFunc opens a userfaultfd in a process and returns a descriptor of it, and for how long the
// process was stopped.
type OpenFunc func(pid int) (fd int, stopped time.Duration, err error)

// SourceConfig says what to move.
type SourceConfig struct {
	Processes func() ([]int, error) // all processes of the container at this moment
	Open      OpenFunc              // nil: kernel.OpenUserfault, in this process
	// Tracking is how to begin with each process; empty: by the best way that the kernel has.
	Tracking Tracking
}

// Source reads the memory of a container's processes, in rounds. It is for one goroutine, but for
// Leave and Leaving.
//
// Memory: it holds one batch of pages (1 MiB) and one of what a scan has found (24 KiB), whatever
// the sink takes; for each task thirteen sets of pages, and up to twelve that remember what was
// written in the last seconds, each of at most 64 bytes and a map entry for each 2 MiB of the
// task's memory, together about 1 MiB for each GiB; and for a process that the kernel cannot track
// by write-protection, or that lets devices write to its memory, 4 MiB for each GiB.
type Source struct {
	config SourceConfig
	tasks  map[int]*task
	gone   []Task // tasks that have ended since the sink was told
	shared sharing
	rounds int
	began  time.Time

	ordering ordering

	leaving atomic.Bool // private pages are noted as remote, and not sent
}

// NewSource returns a source that has attached to nothing yet.
func NewSource(config SourceConfig) *Source {
	if config.Open == nil {
		config.Open = kernel.OpenUserfault
	}
	s := &Source{config: config, tasks: map[int]*task{}, ordering: usualOrdering()}
	if config.Tracking == "" {
		s.config.Tracking, _ = BestTracking()
	}
	return s
}

// Round sends what was written since the last round; in the first, all there is. The processes run
// meanwhile, and must not be frozen. It hands runs of pages to the sink as fast as that takes them.
// If it returns an error, what was found and not sent is lost, and the source is of no use any
// more.
func (s *Source) Round(ctx context.Context, sink Sink) (RoundStats, error) {
	return s.round(ctx, sink, false)
}

// Final is a round of processes that are frozen. When it returns, all has been sent that they hold
// at that moment. It may run beside CRIU's dump, and must then be called again when CRIU is gone:
// CRIU changes a few pages of theirs. After a thaw a Round comes first.
func (s *Source) Final(ctx context.Context, sink Sink) (RoundStats, error) {
	return s.round(ctx, sink, true)
}

func (s *Source) round(ctx context.Context, sink Sink, frozen bool) (RoundStats, error) {
	start := time.Now()
	stats := RoundStats{Number: s.rounds, Final: frozen, Tracking: s.config.Tracking}
	if s.rounds > 0 {
		stats.Interval = start.Sub(s.began)
	}
	s.rounds++
	s.began = start
	r := newReader(sink, &stats)
	r.remote = &s.leaving
	if !frozen && len(s.shared.objects) > 0 {
		s.shared.watched = s.vantage()
	}
	err := s.update(frozen, &stats)
	if err == nil {
		err = s.tellGone(sink)
	}
	if err == nil && !frozen {
		err = s.lookForSharing(&stats)
	}
	for _, t := range s.inOrder() {
		if err != nil {
			break
		}
		err = s.sendTask(ctx, t, r, frozen)
	}
	if err == nil {
		err = s.sendShared(ctx, r, frozen)
	}
	stats.SentBytes = stats.contentBytes()
	stats.Duration = time.Since(start)
	stats.Scan = stats.Duration - stats.Read - stats.Write
	if err != nil {
		return stats, fmt.Errorf("round %d of the memory: %w", stats.Number, err)
	}
	return stats, nil
}

func (s *Source) inOrder() []*task {
	all := make([]*task, 0, len(s.tasks))
	for _, t := range s.tasks {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *task) int { return cmp.Compare(a.id, b.id) })
	return all
}

// sendTask finds, reads and sends the written pages of one process. A process that ends meanwhile
// is no error.
func (s *Source) sendTask(ctx context.Context, t *task, r *reader, frozen bool) error {
	err := errStale
	if !t.stale {
		err = s.sendPages(ctx, t, r)
	}
	if errors.Is(err, errStale) {
		// It has called execve since it was attached to, or while it was.
		r.drop()
		if err = s.renew(t, frozen, r.stats); err == nil {
			err = s.sendPages(ctx, t, r)
		}
	}
	if errors.Is(err, errStale) && !frozen { // once more, and so fast: the next round begins anew
		r.drop()
		t.stale = true
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		r.drop()
		return nil
	}
	if err != nil {
		return t.describe(err)
	}
	return nil
}

func (s *Source) sendPages(ctx context.Context, t *task, r *reader) error {
	if err := t.pagemap.Reopen(t.space); err != nil {
		return err
	}
	if err := t.tracker.begin(r.stats.Final); err != nil {
		return err
	}
	t.setFrozen(r.stats.Final)
	areas, err := t.lazyAreas()
	if err != nil {
		return err
	}
	t.direct.begin(time.Now())
	if s.ordered(t, r.stats.Final) {
		err = s.sendOrdered(ctx, t, r, areas)
	} else {
		err = s.sendInOrder(ctx, t, r, areas)
	}
	if err != nil {
		return err
	}
	t.tracker.end()
	t.scanned = true
	return t.hold(areas, r.stats.Final)
}

// sendInOrder sends the written pages of all mappings as they are found.
func (s *Source) sendInOrder(ctx context.Context, t *task, r *reader, areas []area) error {
	for _, m := range areas {
		if err := s.sendArea(ctx, t, r, m); err != nil {
			return err
		}
	}
	r.stats.TakenAlong += t.along.count()
	t.along = nil
	return nil
}

// beginArea is before pages of a mapping are read that the tracker has found.
func (s *Source) beginArea(t *task, r *reader) {
	r.begin(t, func(address uint64, content []byte) bool {
		t.direct.remember(address, content)
		return t.tracker.changed(address, content)
	})
}

func (s *Source) sendArea(ctx context.Context, t *task, r *reader, m area) error {
	s.beginArea(t, r)
	err := t.tracker.written(t.pagemap, m, func(ranges []kernel.PageRange) error {
		t.direct.note(ranges, time.Now())
		t.holdToo(ranges)
		for _, one := range ranges {
			t.along.remove(one.Start, one.End)
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
		t.tracker.changed(address, content) // it must know of it, too: what was there before may come back
		return true
	})
	err = t.direct.again(m, func(one kernel.PageRange) error { return r.add(ctx, []kernel.PageRange{one}) })
	if err != nil {
		return err
	}
	return r.flush(ctx)
}

// renew begins anew with a process whose memory is not that which was tracked.
func (s *Source) renew(t *task, frozen bool, stats *RoundStats) error {
	if frozen {
		t.refused = errors.New("it has called execve just before the freeze")
		return t.track(Hashing, newHashing())
	}
	return s.attach(t, stats)
}

// Close ends all tracking, and leaves nothing in the processes. Page faults of those that still run
// wait for it, 25 ms for a GiB; so do it outside of the freeze. For processes that are killed it
// costs nothing.
func (s *Source) Close() error {
	errs := []error{s.shared.close()}
	for pid, t := range s.tasks {
		errs = append(errs, t.close())
		delete(s.tasks, pid)
	}
	return errors.Join(errs...)
}
