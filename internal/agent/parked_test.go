package agent

import (
	"math"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// newTestBase is a copy of so many pages.
func newTestBase(t *testing.T, a *Agent, pages, rounds int) *base {
	t.Helper()
	store, err := memory.NewStore(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	if err := store.Put(memory.Run{Task: 1, Pages: uint32(pages)}, make([]byte, pages*memory.PageSize())); err != nil {
		t.Fatal(err)
	}
	return &base{
		agent: a, id: testMigration, from: "a", definition: engine.Definition{ID: testContainer, Name: "web"}, pages: store,
		rounds: rounds, keep: time.Minute, fresh: time.Now(), done: make(chan struct{}),
	}
}

// TestPark: what was staged stays when its connection has ended, if that was wanted, until it is
// wanted no more.
func TestPark(t *testing.T) {
	a := newVolumeAgent(t)
	unwanted := newTestBase(t, a, 3, 1)
	unwanted.keep = 0
	a.park(unwanted)
	if len(a.residuals.list()) > 0 {
		t.Error("it stays although nobody asked for that")
	}
	a.park(newTestBase(t, a, 3, 1))
	list := a.residuals.list()
	if len(list) != 1 {
		t.Fatalf("%d copies are parked", len(list))
	}
	told := list[0].describe()
	if told.State != migration.StageParked || told.MemoryBytes < 3*int64(memory.PageSize()) || told.Source != "a" || told.Fresh.IsZero() {
		t.Errorf("%+v", told)
	}
	a.park(newTestBase(t, a, 2, 0))
	if now := a.residuals.list(); len(now) != 1 || now[0] != list[0] {
		t.Error("part of a copy replaced a whole one")
	}
	a.park(newTestBase(t, a, 2, 1))
	if now := a.residuals.list(); len(now) != 1 || now[0] == list[0] {
		t.Error("a newer copy did not replace the older one")
	}
	if kept := a.residuals.extend(testContainer, time.Now().Add(time.Hour)); kept == nil || time.Until(kept.expires()) < 59*time.Minute {
		t.Error("it does not stay longer")
	}
	if err := a.letGo(t.Context(), testContainer, "a"); err != nil || len(a.residuals.list()) > 0 {
		t.Errorf("it was not given up: %v", err)
	}
}

// TestParkPart: a copy for all of which there is no room, or of which not all has come, is not told
// to be whole.
func TestParkPart(t *testing.T) {
	a := newVolumeAgent(t)
	a.park(newTestBase(t, a, 3, 0))
	if c := a.residuals.copyOf(testContainer, "b"); c.Bytes == 0 || !c.Fresh.IsZero() {
		t.Errorf("before its first round has ended: %+v", c)
	}
	a.park(newTestBase(t, a, 3, 1))
	if c := a.residuals.copyOf(testContainer, "b"); c.Bytes == 0 || c.Fresh.IsZero() {
		t.Errorf("whole: %+v", c)
	}
	cut := newTestBase(t, a, 8, 1)
	if err := cut.pages.Put(memory.Run{Task: 2, Pages: 8}, make([]byte, 8*memory.PageSize())); err != nil {
		t.Fatal(err)
	}
	a.residuals.limit = 12 * int64(memory.PageSize())
	a.park(cut)
	if c := a.residuals.copyOf(testContainer, "b"); c.Bytes == 0 || !c.Fresh.IsZero() {
		t.Errorf("a part: %+v", c)
	}
	a.residuals.drop(testContainer)
}

// TestCheckParked: another node says for how long, within bounds.
func TestCheckParked(t *testing.T) {
	for keep, good := range map[float64]bool{0: true, 60: true, 3600: true, 3601: false, -1: false, math.Inf(1): false, math.NaN(): false} {
		if err := checkParked(keep); (err == nil) != good {
			t.Errorf("%v s: %v", keep, err)
		}
	}
}
