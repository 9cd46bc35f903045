package gc

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
	var c Collector
	for _, step := range []struct {
		do    func()
		moves bool
	}{
		{c.PutOff, true}, {c.PutOff, true}, {c.GoOn, true}, {c.GoOn, false}, {c.PutOff, true},
		{c.GoOn, false},
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
