package stream

import (
	"sync"
	"time"
)

const (
	// burstSeconds bounds the burst after a pause, and minBurst is its minimum.
	burstSeconds = 0.02
	minBurst     = leastPiece
	// debtSeconds bounds how much urgent sessions may take in advance, and leastDebt is its minimum.
	debtSeconds = 0.1
	leastDebt   = 32 << 10
	// mostLate is how late a busy machine may wake a waiting session without losing what it could have sent
	// meanwhile.
	mostLate = 100 * time.Millisecond
)

// Limiter limits the rate at which bytes leave. It is a token bucket whose rate can change while somebody
// waits. Several sessions may share one. The zero value does not limit.
type Limiter struct {
	mu      sync.Mutex
	rate    float64 // bytes per second; 0: none
	tokens  float64
	last    time.Time
	due     time.Time     // when a waiting session should wake up
	changed chan struct{} // closed when the rate changes
}

// SetRate changes the rate for all sessions, including waiting ones. 0 or less: no limit.
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

// bitsPerSecond returns the present rate; 0: none.
func (l *Limiter) bitsPerSecond() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate * 8
}

// piece returns how much should be taken at once, so that a change of the rate and other sessions do not
// wait long behind it, and data leaves evenly at a low rate. 0: there is no rate now.
func (l *Limiter) piece() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate <= 0 {
		return 0
	}
	return int(min(max(leastPiece, l.rate*pieceSeconds), limitedPiece))
}

func (l *Limiter) burst() float64 { return max(minBurst, l.rate*burstSeconds) }

func (l *Limiter) refill(now time.Time) {
	most := l.burst()
	if late := now.Sub(l.due); !l.due.IsZero() && late >= 0 {
		most += min(late, mostLate).Seconds() * l.rate
		l.due = time.Time{}
	}
	if !l.last.IsZero() {
		l.tokens = min(max(most, l.tokens), l.tokens+now.Sub(l.last).Seconds()*l.rate)
	}
	l.last = now
}

// take waits until n bytes may leave. It returns false if stop is closed first. n may exceed the burst: the
// tokens then go below zero, and the next caller waits longer. Urgent callers do not wait for tokens, as
// long as the debt is small; the others pay the debt.
func (l *Limiter) take(n int, urgent bool, stop <-chan struct{}) bool {
	for {
		wait, changed := l.reserve(n, urgent, time.Now())
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

// reserve takes n tokens if any are there. Otherwise it returns how long to wait at the present rate.
func (l *Limiter) reserve(n int, urgent bool, now time.Time) (time.Duration, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refill(now)
	if l.rate <= 0 {
		return 0, nil
	}
	least := 0.0
	if urgent {
		least = -max(l.rate*debtSeconds, leastDebt)
	}
	if l.tokens > least {
		l.tokens -= float64(n)
		return 0, nil
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	wait := time.Duration((least+1-l.tokens)/l.rate*float64(time.Second)) + time.Microsecond
	l.due = now.Add(wait)
	return wait, l.changed
}
