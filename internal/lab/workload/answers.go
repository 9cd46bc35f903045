package workload

import (
	"sync"
	"time"
)

// Answer is the time of a request and of its answer.
type Answer struct{ Asked, At time.Time }

// Answers are the answers of a client that sends requests all the time. The zero value is ready.
type Answers struct {
	mu  sync.Mutex
	all []Answer
}

// Add notes an answer that has just come.
func (a *Answers) Add(asked time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, Answer{asked, time.Now()})
}

// Count returns the number of answers.
func (a *Answers) Count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.all)
}

// Since returns the answers after an instant, in their order.
func (a *Answers) Since(instant time.Time) []Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := len(a.all)
	for first > 0 && a.all[first-1].At.After(instant) {
		first--
	}
	return append([]Answer(nil), a.all[first:]...)
}

// Gap returns the longest time without an answer since an instant.
func (a *Answers) Gap(since time.Time) time.Duration {
	longest := time.Duration(0)
	for _, one := range a.Since(since) {
		longest, since = max(longest, one.At.Sub(since)), one.At
	}
	return longest
}
