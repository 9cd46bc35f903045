package agent

import (
	"runtime/debug"
	"sync"
)

// How much the heap may grow between two garbage collections, in percent of what is in use.
const (
	usualGrowth = 25 // buffers are reused, so little is collected; the memory is for containers
	movesGrowth = 400
)

// collections puts garbage collections off while containers move. One takes several milliseconds of all
// processors, and on a node with few of them, a frozen container waits for that long.
type collections struct {
	mu    sync.Mutex
	moves int
}

// ofProcess are those of this process: there is one collector, however many agents there are.
var ofProcess collections

// putOff has hardly any collection begin until goOn is called as often. It waits for one that is under way.
func (c *collections) putOff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moves++; c.moves == 1 {
		debug.SetGCPercent(movesGrowth)
	}
}

func (c *collections) goOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moves--; c.moves == 0 {
		debug.SetGCPercent(usualGrowth)
	}
}

// giveBack gives unused memory back to the kernel, which takes a collection, unless a container moves. The
// end of that move gives it back.
func (c *collections) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moves == 0 {
		debug.FreeOSMemory()
	}
}
