package stream

import (
	"sync"
	"time"
)

const (
	// burstSeconds is how much may leave at once after a pause, and minBurst the least: below a few segments per
	// wake-up the timer's own cost would show.
	burstSeconds = 0.02
	minBurst     = 16 << 10
)

// Limiter holds back bytes so that no more than a rate leaves: a token bucket whose rate can change while somebody
// waits. Several sessions may share one. The zero value does not limit.
type Limiter struct {
	mu      sync.Mutex
	rate    float64 // bytes per second; 0: none
	tokens  float64
	last    time.Time
	changed chan struct{} // closed when the rate changes
}

// SetRate changes the rate for all, also for who waits now. 0 or less: no limit.
func (l *Limiter) SetRate(bitsPerSecond float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refill(time.Now())
	l.rate = max(0, bitsPerSecond/8)
	l.tokens = min(l.tokens, l.burst())
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// limited says whether there is a rate now.
func (l *Limiter) limited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate > 0
}

func (l *Limiter) burst() float64 { return max(minBurst, l.rate*burstSeconds) }

func (l *Limiter) refill(now time.Time) {
	if !l.last.IsZero() {
		l.tokens = min(l.burst(), l.tokens+now.Sub(l.last).Seconds()*l.rate)
	}
	l.last = now
}

// take waits until n bytes may leave, or until stop is closed: then it returns false. n may exceed the burst: the
// tokens go below zero and who comes next waits longer.
func (l *Limiter) take(n int, stop <-chan struct{}) bool {
	for {
		wait, changed := l.reserve(n, time.Now())
		if wait <= 0 {
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
			timer.Stop()
		case <-stop:
			timer.Stop()
			return false
		}
	}
}

// reserve takes n tokens if any are there; else it tells how long to wait at the present rate.
func (l *Limiter) reserve(n int, now time.Time) (time.Duration, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refill(now)
	if l.rate <= 0 {
		return 0, nil
	}
	if l.tokens > 0 {
		l.tokens -= float64(n)
		return 0, nil
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return time.Duration((1-l.tokens)/l.rate*float64(time.Second)) + time.Microsecond, l.changed
}
