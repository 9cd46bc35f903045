package ordered

import (
	"context"
	"sync"

	"github.com/godwit/godwit/internal/guard"
)

// slot is a job in progress.
type slot[J any] struct {
	job  J
	done chan struct{}
}

// Pipeline makes jobs, does them in parallel, and passes them on in the order in which they were made. Feed
// makes them in a separate goroutine; work does one, given the number of the worker; drain gets them, in
// the caller's goroutine. At most depth jobs are in progress. The first error, or panic, ends everything;
// drop is called for jobs that then do not reach drain.
type Pipeline[J any] struct {
	Workers, Depth int
	Feed           func(put func(J) error) error
	Work           func(worker int, job J) error
	Drain          func(J) error
	Drop           func(J)
}

// Run does all jobs.
func (p *Pipeline[J]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ordered, undone := make(chan slot[J], p.Depth), make(chan slot[J], p.Depth)
	var running sync.WaitGroup
	running.Go(func() {
		defer close(undone)
		defer close(ordered)
		err := guard.Do(func() error {
			return p.Feed(func(job J) error { return p.put(ctx, job, ordered, undone) })
		})
		if err != nil {
			cancel(err)
		}
	})
	for i := range p.Workers {
		running.Go(func() {
			for s := range undone {
				if ctx.Err() == nil {
					if err := guard.Do(func() error { return p.Work(i, s.job) }); err != nil {
						cancel(err)
					}
				}
				close(s.done)
			}
		})
	}
	for s := range ordered {
		<-s.done
		if ctx.Err() != nil {
			p.Drop(s.job)
			continue
		}
		if err := guard.Do(func() error { return p.Drain(s.job) }); err != nil {
			cancel(err)
		}
	}
	running.Wait()
	return context.Cause(ctx)
}

// put does not block for ever: ordered and undone have the same length, and both are drained until they are
// closed.
func (p *Pipeline[J]) put(ctx context.Context, job J, ordered, undone chan slot[J]) error {
	if ctx.Err() != nil {
		p.Drop(job)
		return context.Cause(ctx)
	}
	s := slot[J]{job, make(chan struct{})}
	ordered <- s
	undone <- s
	return nil
}
