package intake

import (
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// keptCallers is how many callers are remembered before those are forgotten that have not called for long.
const keptCallers = 1000

// Rate is how often a caller may call: Burst times at once, and PerSecond times on average.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Rates counts calls by caller.
type Rates struct {
	rate Rate
	now  func() time.Time

	mu      sync.Mutex
	callers map[string]allowance
}

// allowance is how many calls a caller had left at a time.
type allowance struct {
	calls float64
	at    time.Time
}

// NewRates returns a count with one rate for all callers.
func NewRates(rate Rate, now func() time.Time) *Rates {
	return &Rates{rate: rate, now: now, callers: map[string]allowance{}}
}

// Take counts a call. 0: it may be made. Otherwise it may not, and is not counted; wait says when the next
// may be.
func (r *Rates) Take(caller string) (wait time.Duration) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.left(r.callers[caller], now)
	if left < 1 {
		r.callers[caller] = allowance{left, now}
		return time.Duration((1-left)/r.rate.PerSecond*float64(time.Second)) + 1
	}
	if len(r.callers) >= keptCallers {
		maps.DeleteFunc(r.callers, func(_ string, one allowance) bool {
			return r.left(one, now) >= float64(r.rate.Burst)
		})
	}
	r.callers[caller] = allowance{left - 1, now}
	return 0
}

// left is how many calls a caller may make at once. Nobody knows a new one: it may make Burst calls.
func (r *Rates) left(one allowance, now time.Time) float64 {
	if one.at.IsZero() {
		return float64(r.rate.Burst)
	}
	earned := max(0, now.Sub(one.at).Seconds()) * r.rate.PerSecond
	return min(one.calls+earned, float64(r.rate.Burst))
}

// Allow is Take with an answer for the caller.
func (r *Rates) Allow(caller string) error {
	wait := r.Take(caller)
	if wait == 0 {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted, "%s makes too many calls: the limit is %g a second, and "+
		"%d at once; nothing was done; try again in %v",
		caller, r.rate.PerSecond, r.rate.Burst, wait.Round(time.Millisecond))
}

// Calls counts the calls of each caller that are under way.
type Calls struct {
	most int

	mu    sync.Mutex
	under map[string]int
}

// NewCalls returns a count with one limit for all callers.
func NewCalls(most int) *Calls { return &Calls{most: most, under: map[string]int{}} }

// Begin counts a call until end is called. Error: there are too many.
func (c *Calls) Begin(caller string) (end func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.under[caller] >= c.most {
		return nil, status.Errorf(codes.ResourceExhausted,
			"%s has %d calls under way; the limit is %d; nothing was done", caller, c.under[caller], c.most)
	}
	c.under[caller]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.under[caller]--; c.under[caller] == 0 {
			delete(c.under, caller)
		}
	}, nil
}
