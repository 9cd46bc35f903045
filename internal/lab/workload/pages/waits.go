package pages

import (
	"encoding/binary"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"
)

// Access patterns: the workload reads all of its memory at full speed, again and again.
const (
	Scan = "scan" // one page after the other
	Jump = "jump" // random pages
)

// Accessed is the measurement of a workload that listens: how long it had to wait for pages of its own
// memory when it touched them. A touch for which the kernel counts a page fault is a wait. Once memory is
// filled there are no others: all of it is mapped, and a userfaultfd's pages are mapped when they come.
// (The kernel counts such a wait as a minor fault, since it looks for the page again under another lock; so
// minor and major faults are added.)
type Accessed struct {
	Accesses       int64   `json:"accesses"` // of its memory, with or without waiting
	Waits          int64   `json:"waits"`
	MedianSeconds  float64 `json:"median_seconds"`
	P99Seconds     float64 `json:"p99_seconds"` // as the median, with a precision of 3 %
	LongestSeconds float64 `json:"longest_seconds"`
	WaitedSeconds  float64 `json:"waited_seconds"` // of all threads together
	Bad            int64   `json:"bad"`            // pages with a wrong content
}

// The table of waits has this many steps between two powers of two.
const (
	waitBits  = 5
	waitSteps = 1 << waitBits
	waitSizes = (64 - waitBits) * waitSteps
)

// waits is one thread's histogram of waits, by duration.
type waits struct {
	accesses int64
	count    [waitSizes]uint32
	all      int64
	sum      time.Duration
	longest  time.Duration
}

// step returns the step in which a time is counted.
func step(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < waitSteps {
		return int(n)
	}
	shift := bits.Len64(n) - 1 - waitBits
	return shift*waitSteps + int(n>>shift)
}

// stepBegin returns the shortest time that is counted in a step.
func stepBegin(step int) time.Duration {
	if step < 2*waitSteps {
		return time.Duration(step)
	}
	shift := step/waitSteps - 1
	return time.Duration(step%waitSteps+waitSteps) << shift
}

func (w *waits) add(d time.Duration) {
	w.count[step(d)]++
	w.all++
	w.sum += d
	w.longest = max(w.longest, d)
}

// merge adds another thread's waits.
func (w *waits) merge(other *waits) {
	for i, n := range other.count {
		w.count[i] += n
	}
	w.accesses += other.accesses
	w.all += other.all
	w.sum += other.sum
	w.longest = max(w.longest, other.longest)
}

// quantile returns the time that a part of all waits did not exceed.
func (w *waits) quantile(part float64) time.Duration {
	left := int64(part * float64(w.all))
	for i, n := range w.count {
		if left -= int64(n); left < 0 {
			return min(stepBegin(i+1), w.longest)
		}
	}
	return w.longest
}

func (w *waits) accessed(bad int64) Accessed {
	return Accessed{
		Accesses: w.accesses, Waits: w.all, MedianSeconds: w.quantile(0.5).Seconds(),
		P99Seconds:     w.quantile(0.99).Seconds(),
		LongestSeconds: w.longest.Seconds(), WaitedSeconds: w.sum.Seconds(), Bad: bad,
	}
}

// touch reads a word of a page and records whether it had to wait.
func (p *part) touch(i uint64) {
	word := p.page(i)[:word]
	before := faults()
	began := time.Now()
	p.seen ^= binary.LittleEndian.Uint64(word)
	took := time.Since(began)
	p.waits.accesses++
	if faults() > before {
		p.waits.add(took)
	}
}

// faults returns the page faults of this thread.
func faults() int64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		return 0 // it cannot fail with these arguments (getrusage(2))
	}
	return usage.Minflt + usage.Majflt
}

// accessNext reads the page whose turn it is.
func (p *part) accessNext() {
	i := p.at % uint64(len(p.written))
	p.at++
	if p.access == Jump {
		i = mix(p.at*golden^p.first) % uint64(len(p.written))
	}
	p.check(i)
}
