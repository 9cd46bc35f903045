// Package patience bounds how long this program waits for another one, by the other program's activity and
// not by the clock alone. A limit that suits an idle server gives up on a program that runs at a twentieth
// of the speed, on an emulated machine or under a processor limit. So a wait goes on as long as the other
// side is active, and ends when it has been inactive for some time. A second, generous bound ends the wait
// for a side that works in circles.
package patience

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Limit is how long to wait.
type Limit struct {
	Still time.Duration // how long the other side may be inactive
	Most  time.Duration // how long it may take, whatever it does
}

// Question is the limit of a request that another program answers at once unless it is busy.
var Question = Limit{Still: 10 * time.Second, Most: 2 * time.Minute}

// Signs reports whether the other side was active since the last call. One wait calls it, from one
// goroutine.
type Signs func() bool

// LateError means that the other side did not answer. It is a context.DeadlineExceeded.
type LateError struct {
	Who    string
	Waited time.Duration
	Still  bool // it was inactive meanwhile
}

func (e *LateError) Error() string {
	why := "and is still busy"
	if e.Still {
		why = "and shows no sign of work" // a node may work beyond a link that is down
	}
	return fmt.Sprintf("%s did not answer within %s %s", e.Who, e.Waited.Round(time.Second), why)
}

// Is makes the error a context.DeadlineExceeded.
func (e *LateError) Is(target error) bool { return target == context.DeadlineExceeded }

// For returns a context that ends with a *LateError when who has not answered for that long. The caller
// must call cancel.
func (l Limit) For(ctx context.Context, who string, signs Signs) (limited context.Context,
	cancel context.CancelFunc) {
	inner, end := context.WithCancelCause(ctx)
	w := &wait{Context: inner, limit: l, who: who, began: time.Now()}
	ticker := time.NewTicker(max(l.Still/looks, shortest))
	over := make(chan struct{})
	go func() {
		defer ticker.Stop()
		w.watch(signs, ticker.C, over, end)
	}()
	return w, sync.OnceFunc(func() {
		close(over)
		end(context.Canceled)
	})
}

// looks is how often the other side is examined in the time for which it may be inactive.
const looks = 10

// shortest is the shortest time between two looks. A limit of no time at all ends with the first one.
const shortest = time.Millisecond

// wait is a context whose error names the late side.
type wait struct {
	context.Context
	limit Limit
	who   string
	began time.Time
}

// Err returns the context's error. It is the *LateError when the time is over.
func (w *wait) Err() error {
	err := w.Context.Err()
	//nolint:errorlint // only its own counts
	if late, is := context.Cause(w.Context).(*LateError); err != nil &&
		is {
		return late
	}
	return err
}

func (w *wait) watch(signs Signs, ticks <-chan time.Time, over <-chan struct{}, end context.CancelCauseFunc) {
	moved := w.began
	for {
		select {
		case <-over:
			return
		case <-w.Done():
			return
		case now := <-ticks:
			if signs() {
				moved = now
			}
			if still := now.Sub(moved) >= w.limit.Still; still || now.Sub(w.began) >= w.limit.Most {
				end(&LateError{w.who, now.Sub(w.began), still})
				return
			}
		}
	}
}

// Explain returns the *LateError with which a context of this package ended, in place of the error of an
// operation that used the context.
func Explain(ctx context.Context, err error) error {
	if late, is := context.Cause(ctx).(*LateError); err != nil && //nolint:errorlint // it is the cause itself
		is {
		return late
	}
	return err
}

// Count watches a number that grows as long as the other side is active, for example of received bytes.
func Count(count func() int64) Signs {
	last := count()
	return func() bool {
		before := last
		last = count()
		return last != before
	}
}
