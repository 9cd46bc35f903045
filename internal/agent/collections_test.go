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

// TestCollections: collections are put off until the last container that moves has ended its move.
func TestCollections(t *testing.T) {
	before := debug.SetGCPercent(usualGrowth)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	var c collections
	for _, step := range []struct {
		do   func()
		want uint64
	}{
		{c.putOff, movesGrowth}, {c.putOff, movesGrowth}, {c.goOn, movesGrowth}, {c.goOn, usualGrowth},
		{c.putOff, movesGrowth}, {c.goOn, usualGrowth},
	} {
		step.do()
		if got := heapGrowth(); got != step.want {
			t.Fatalf("with %d moves, the heap may grow by %d %%, want %d", c.moves, got, step.want)
		}
	}
}

// TestMoveCollects: a move that has ended leaves no collection put off, also if a step of it is late.
func TestMoveCollects(t *testing.T) {
	before := debug.SetGCPercent(usualGrowth)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	m := &move{}
	m.putOffCollections()
	m.putOffCollections()
	if got := heapGrowth(); got != movesGrowth {
		t.Errorf("during the move, the heap may grow by %d %%, want %d", got, movesGrowth)
	}
	m.over = true
	m.collectAgain()
	m.putOffCollections()
	if got := heapGrowth(); got != usualGrowth {
		t.Errorf("after the move, the heap may grow by %d %%, want %d", got, usualGrowth)
	}
}
