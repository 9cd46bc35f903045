package migrate

import (
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/godwit/godwit/internal/gc"
)

func heapGrowth() uint64 {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// TestMovePutsGCOff: a move that has ended puts no collection off, even if one of its steps is remote.
func TestMovePutsGCOff(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	gc.Usual()
	usual := heapGrowth()
	m := &Move{}
	m.PutOffGC()
	m.PutOffGC()
	if got := heapGrowth(); got <= usual {
		t.Errorf("during the move, the heap may grow by %d %%", got)
	}
	m.over = true
	m.resumeGC()
	m.PutOffGC()
	if got := heapGrowth(); got != usual {
		t.Errorf("after the move, the heap may grow by %d %%, want %d", got, usual)
	}
}
