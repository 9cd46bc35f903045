package agent

import (
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func heapGrowth() uint64 {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// TestCollector: collections are put off until the last container that moves has ended its move.
func TestCollector(t *testing.T) {
	before := debug.SetGCPercent(usualGrowth)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	var c collector
	for _, step := range []struct {
		do    func()
		moves bool
	}{
		{c.putOff, true}, {c.putOff, true}, {c.goOn, true}, {c.goOn, false}, {c.putOff, true},
		{c.goOn, false},
	} {
		step.do()
		if got := heapGrowth(); step.moves != (got > usualGrowth) {
			t.Fatalf("with %d moves, the heap may grow by %d %%", c.moves, got)
		}
	}
}

func TestGrowthInMoves(t *testing.T) {
	for inUse, want := range map[uint64]int{0: 400, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100,
		1 << 30: 25} {
		if got := growthInMoves(inUse); got != want {
			t.Errorf("with %d bytes in use, the heap may grow by %d %%, want %d", inUse, got, want)
		}
	}
}

// TestMovePutsGCOff: a move that has ended puts no collection off, even if one of its steps is remote.
func TestMovePutsGCOff(t *testing.T) {
	before := debug.SetGCPercent(usualGrowth)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	m := &move{}
	m.putOffGC()
	m.putOffGC()
	if got := heapGrowth(); got <= usualGrowth {
		t.Errorf("during the move, the heap may grow by %d %%", got)
	}
	m.over = true
	m.resumeGC()
	m.putOffGC()
	if got := heapGrowth(); got != usualGrowth {
		t.Errorf("after the move, the heap may grow by %d %%, want %d", got, usualGrowth)
	}
}
