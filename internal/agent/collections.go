package agent

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// How much the heap may grow between two garbage collections.
const (
	usualGrowth = 25       // percent of what is in use: buffers are reused, and the memory is for containers
	movesGrowth = 64 << 20 // bytes, while containers move; more than is allocated in a freeze
	mostGrowth  = 400      // percent, then
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
		debug.SetGCPercent(growthInMoves(heapInUse()))
	}
}

// heapInUse is what the last collection has left, in bytes.
func heapInUse() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// growthInMoves is movesGrowth in percent of what is in use.
func growthInMoves(inUse uint64) int {
	return max(usualGrowth, min(mostGrowth, int(movesGrowth*100/max(inUse, 1))))
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
