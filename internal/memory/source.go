package memory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/kernel/inject"
)

// OpenFunc opens a userfaultfd in a process and returns a descriptor of it, and how long the process was
// stopped.
type OpenFunc func(pid int) (fd int, stopped time.Duration, err error)

// SourceConfig configures a Source.
type SourceConfig struct {
	Processes func() ([]int, error) // returns all present processes of the container
	Open      OpenFunc              // nil: inject.OpenUserfault, in this process
	// Tracking is the first way to try with each process; empty: the best way of the kernel.
	Tracking Tracking
}

// Source reads the memory of a container's processes, in rounds. It is for one goroutine, except Leave and
// Leaving.
//
// Memory: it holds one batch of pages (1 MiB) and one of scan results (24 KiB), whatever the sink takes.
// For each task it holds thirteen sets of pages, and up to twelve that remember what was written in the
// last seconds, each of at most 64 bytes and a map entry for each 2 MiB of the task's memory, together
// about 1 MiB per GiB. And for a process that the kernel cannot track by write-protection, or that lets
// devices write to its memory, it holds 4 MiB per GiB.
type Source struct {
	tasks  tasks
	shared sharing
	rounds int
	began  time.Time

	ordering ordering

	leaving atomic.Bool // private pages are recorded as remote, and not sent
}

// NewSource returns a source that is not attached to anything yet.
func NewSource(config SourceConfig) *Source {
	if config.Open == nil {
		config.Open = inject.OpenUserfault
	}
	if config.Tracking == "" {
		config.Tracking, _ = BestTracking()
	}
	s := &Source{ordering: usualOrdering()}
	s.tasks = tasks{config: config, leaving: &s.leaving, all: map[int]*task{}}
	s.shared.tasks = &s.tasks
	return s
}

// Round sends what was written since the last round; the first round sends everything. The processes run
// meanwhile, and must not be frozen. It passes runs of pages to the sink as fast as the sink takes them. If
// it returns an error, pages that were found and not sent are lost, and the source is useless.
func (s *Source) Round(ctx context.Context, sink Sink) (RoundStats, error) {
	return s.round(ctx, sink, false)
}

// Final is a round of frozen processes. When it returns, everything that they hold at that moment has been
// sent. It may run in parallel to CRIU's dump, and must then be called again when CRIU is gone, because
// CRIU changes a few pages. After a thaw, call Round first.
func (s *Source) Final(ctx context.Context, sink Sink) (RoundStats, error) {
	return s.round(ctx, sink, true)
}

func (s *Source) round(ctx context.Context, sink Sink, frozen bool) (RoundStats, error) {
	start := time.Now()
	stats := RoundStats{Number: s.rounds, Final: frozen}
	stats.Tracking = s.tasks.config.Tracking
	if s.rounds > 0 {
		stats.Interval = start.Sub(s.began)
	}
	s.rounds++
	s.began = start
	r := newReader(sink, &stats)
	r.remote = &s.leaving
	if !frozen && len(s.shared.objects) > 0 {
		s.shared.watched = s.tasks.vantage()
	}
	err := s.tasks.update(frozen, &stats)
	if err == nil {
		err = s.tasks.tellGone(sink)
	}
	if err == nil && !frozen {
		err = s.tasks.lookForSharing(&stats)
	}
	for _, t := range s.tasks.inOrder() {
		if err != nil {
			break
		}
		err = s.sendTask(ctx, t, r, frozen)
	}
	if err == nil {
		err = s.shared.send(ctx, r, frozen)
	}
	stats.SentBytes = stats.contentBytes()
	stats.Duration = time.Since(start)
	stats.Scan = stats.Duration - stats.Read - stats.Write
	if err != nil {
		return stats, fmt.Errorf("round %d of the memory: %w", stats.Number, err)
	}
	return stats, nil
}

// sendTask finds, reads and sends the written pages of one process. A process that ends meanwhile is no
// error.
func (s *Source) sendTask(ctx context.Context, t *task, r *reader, frozen bool) error {
	err := errStale
	if !t.stale {
		err = s.sendPages(ctx, t, r)
	}
	if errors.Is(err, errStale) {
		// The process has called execve since or during the attach.
		r.drop()
		if err = s.tasks.renew(t, frozen, r.stats); err == nil {
			err = s.sendPages(ctx, t, r)
		}
	}
	if errors.Is(err, errStale) && !frozen { // once more: the next round starts again
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
	p := pass{t, r, s.ordering}
	if s.ordered(t, r.stats.Final) {
		err = p.sendOrdered(ctx, areas)
	} else {
		err = p.sendInOrder(ctx, areas)
	}
	if err != nil {
		return err
	}
	t.tracker.end()
	t.scanned = true
	return t.hold(areas, r.stats.Final)
}

// Close ends all tracking, and leaves nothing in the processes. Page faults of running processes wait for
// it, 25 ms per GiB, so call it outside the freeze. For killed processes it costs nothing.
func (s *Source) Close() error {
	return errors.Join(append([]error{s.shared.close()}, s.tasks.close()...)...)
}
