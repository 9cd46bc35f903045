package pages

import (
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"time"
)

// maxTold is how many bad pages are reported one by one.
const maxTold = 20

// tally counts the work of all threads together.
type tally struct {
	Pages   int64        `json:"pages"`
	Written atomic.Int64 `json:"-"`
	Checked atomic.Int64 `json:"-"`
	Bad     atomic.Int64 `json:"-"`
	out     io.Writer
}

func (t *tally) checked(err error) {
	t.Checked.Add(1)
	if err != nil && t.Bad.Add(1) <= maxTold {
		fmt.Fprintln(t.out, "bad:", err)
	}
}

// part is the memory of one thread.
type part struct {
	config  Config
	form    form
	memory  []byte
	first   uint64   // number of its first page
	written []uint64 // how often each page was written
	hot     uint64   // number of pages that are written
	chance  uint64
	next    uint64 // page to write in a cycle
	look    uint64 // page to check next
	tally   *tally
	asked   chan func() // functions to call between two pages
	waits   *waits      // nil: not measured
	access  string      // order in which all pages are read, at full speed; empty: none
	at      uint64      // position in that order
	seen    uint64      // sum of touched words: keeps the compiler from removing the reads
}

// page returns the page at an index.
func (p *part) page(i uint64) []byte {
	size := uint64(pageSize())
	return p.memory[i*size : (i+1)*size]
}

// fill writes all pages for the first time.
func (p *part) fill() {
	for i := range uint64(len(p.written)) {
		p.form.make(p.page(i), p.first+i)
	}
}

func (p *part) check(i uint64) {
	if p.waits != nil {
		p.touch(i)
	}
	p.tally.checked(p.form.verify(p.page(i), p.first+i, p.written[i]))
}

// write checks the page whose turn it is, and writes it.
func (p *part) write() {
	i := p.next % p.hot
	if p.config.Order == Random {
		p.chance += golden
		i = mix(p.chance) % p.hot
	}
	p.next = i + 1
	p.check(i)
	p.written[i]++
	p.form.write(p.page(i), p.first+i, p.written[i])
	p.tally.Written.Add(1)
}

func (p *part) checkNext() {
	p.check(p.look)
	p.look = (p.look + 1) % uint64(len(p.written))
}

const (
	tick = 10 * time.Millisecond
	// missed writes of a longer pause, such as a freeze, are not made up for
	maxTick = 100 * time.Millisecond
)

// run writes and checks at the configured rates, and calls requested functions, until stop is closed.
func (p *part) run(stop <-chan struct{}) {
	if p.waits != nil {
		runtime.LockOSThread() // its waiting is measured
		defer runtime.UnlockOSThread()
	}
	rates := rates{
		writes: pace{rate: float64(p.config.Rate) / float64(p.config.Threads*pageSize())},
		checks: pace{rate: float64(p.config.Check) / float64(p.config.Threads*pageSize())},
		last:   time.Now(),
	}
	var due <-chan time.Time
	if rates.writes.rate != 0 || rates.checks.rate != 0 {
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		due = ticker.C
	}
	busy := make(chan struct{})
	close(busy)
	for {
		accessing := busy
		if p.access == "" {
			accessing = nil
		}
		select {
		case <-stop:
			return
		case do := <-p.asked:
			do()
		case <-due:
			p.work(&rates)
		case <-accessing:
			p.accessNext()
		}
	}
}

// rates are a part's rates of writing and checking.
type rates struct {
	writes, checks pace
	last           time.Time
}

// work does everything that is due.
func (p *part) work(r *rates) {
	now := time.Now()
	since := min(now.Sub(r.last), maxTick)
	r.last = now
	for range r.writes.due(since) {
		p.write()
	}
	for range r.checks.due(since) {
		p.checkNext()
	}
}

// pace converts a rate into whole numbers.
type pace struct{ rate, owed float64 }

func (p *pace) due(since time.Duration) int {
	p.owed += p.rate * since.Seconds()
	n := int(p.owed)
	p.owed -= float64(n)
	return n
}
