package ordered

import (
	"errors"
	"testing"

	"github.com/godwit/godwit/internal/guard"
)

// TestPanicEndsAPipeline: a panic in any of its parts becomes its error, and no part waits for ever.
func TestPanicEndsAPipeline(t *testing.T) {
	const jobs = 100
	nothing := func(int) error { return nil }
	feed := func(put func(int) error) error {
		for job := range jobs {
			if err := put(job); err != nil {
				return err
			}
		}
		return nil
	}
	bad := func(int) error { panic("on purpose") }
	work := func(do func(int) error) func(int, int) error {
		return func(_, job int) error { return do(job) }
	}
	for name, p := range map[string]Pipeline[int]{
		"feed": {Feed: func(func(int) error) error { panic("on purpose") }, Work: work(nothing),
			Drain: nothing},
		"work":  {Feed: feed, Work: work(bad), Drain: nothing},
		"drain": {Feed: feed, Work: work(nothing), Drain: bad},
	} {
		t.Run(name, func(t *testing.T) {
			p.Workers, p.Depth, p.Drop = 2, 4, func(int) {}
			var panicked *guard.Panic
			if err := p.Run(t.Context()); !errors.As(err, &panicked) {
				t.Errorf("error %v, want the panic", err)
			}
		})
	}
}
