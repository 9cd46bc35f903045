// Package gc puts garbage collections off while containers move. A collection takes several milliseconds of
// all processors, and on a node with few processors, a frozen container waits for that long.
package gc

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

// Collector counts the moves that put collections off.
type Collector struct {
	mu    sync.Mutex
	moves int
}

// Process is this process's collector: the runtime has one, however many agents there are.
var Process Collector

// Usual sets the growth of the heap for a process in which nothing moves.
func Usual() { debug.SetGCPercent(usualGrowth) }

// PutOff lets hardly any collection begin until GoOn has been called as often. It waits for a collection that
// is under way.
func (c *Collector) PutOff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moves++; c.moves == 1 {
		debug.SetGCPercent(growthInMoves(heapInUse()))
	}
}

// heapInUse is the size of what the last collection kept, in bytes.
func heapInUse() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// growthInMoves is movesGrowth in percent of what is in use.
func growthInMoves(inUse uint64) int {
	return max(usualGrowth, min(mostGrowth, int(movesGrowth*100/max(inUse, 1))))
}

// GoOn ends what a PutOff began.
func (c *Collector) GoOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moves--; c.moves == 0 {
		debug.SetGCPercent(usualGrowth)
	}
}

// GiveBack collects garbage and gives unused memory back to the kernel, unless a container moves: the end of
// that move gives the memory back.
func (c *Collector) GiveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moves == 0 {
		debug.FreeOSMemory()
	}
}
