package staging

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/residual"
)

// newTestCopy is a copy of so many pages.
func newTestCopy(t *testing.T, c *Copies, pages, rounds int) *Copy {
	t.Helper()
	store, err := memory.NewStore(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	if err := store.Put(memory.Run{Task: 1, Pages: uint32(pages)},
		make([]byte, pages*memory.PageSize())); err != nil {
		t.Fatal(err)
	}
	return &Copy{
		owner: c, id: testStage, from: "a", definition: web,
		pages:  store,
		rounds: rounds, keep: time.Minute, fresh: time.Now(), done: make(chan struct{}),
	}
}

// TestKeepIdle: a staged copy stays when its connection has ended, if that was asked for, until it is let go.
func TestKeepIdle(t *testing.T) {
	c := newNodes(t).copies
	unwanted := newTestCopy(t, c, 3, 1)
	unwanted.keep = 0
	c.keepIdle(unwanted)
	if len(c.residuals.List()) > 0 {
		t.Error("it stays although nobody asked for that")
	}
	c.keepIdle(newTestCopy(t, c, 3, 1))
	list := c.residuals.List()
	if len(list) != 1 {
		t.Fatalf("%d copies are idle", len(list))
	}
	told := list[0].Describe()
	if told.State != migration.StageIdle || told.MemoryBytes < 3*int64(memory.PageSize()) ||
		told.Source != "a" || told.Fresh.IsZero() {
		t.Errorf("%+v", told)
	}
	c.keepIdle(newTestCopy(t, c, 2, 0))
	if now := c.residuals.List(); len(now) != 1 || now[0] != list[0] {
		t.Error("part of a copy replaced a whole one")
	}
	c.keepIdle(newTestCopy(t, c, 2, 1))
	if now := c.residuals.List(); len(now) != 1 || now[0] == list[0] {
		t.Error("a newer copy did not replace the older one")
	}
	if kept := c.residuals.Extend(web.ID, time.Now().Add(time.Hour)); kept == nil ||
		time.Until(kept.Describe().Until) < 59*time.Minute {
		t.Error("it does not stay longer")
	}
	if err := c.LetGo(t.Context(), web.ID, "a"); err != nil || len(c.residuals.List()) > 0 {
		t.Errorf("it was not given up: %v", err)
	}
}

// TestKeepIdlePart: a copy for all of which there is no room, or of which not all has come, is not told
// to be whole.
func TestKeepIdlePart(t *testing.T) {
	c := newNodes(t).copies
	c.keepIdle(newTestCopy(t, c, 3, 0))
	if bytes, fresh, _ := c.residuals.Holds(web.ID); bytes == 0 || !fresh.IsZero() {
		t.Errorf("before its first round has ended: %d bytes as of %s", bytes, fresh)
	}
	c.keepIdle(newTestCopy(t, c, 3, 1))
	if bytes, fresh, _ := c.residuals.Holds(web.ID); bytes == 0 || fresh.IsZero() {
		t.Errorf("whole: %d bytes as of %s", bytes, fresh)
	}
	cut := newTestCopy(t, c, 8, 1)
	if err := cut.pages.Put(memory.Run{Task: 2, Pages: 8}, make([]byte, 8*memory.PageSize())); err != nil {
		t.Fatal(err)
	}
	c.residuals = residual.New(residual.Config{Limit: 12 * int64(memory.PageSize()), File: os.Create})
	c.keepIdle(cut)
	if bytes, fresh, _ := c.residuals.Holds(web.ID); bytes == 0 || !fresh.IsZero() {
		t.Errorf("a part: %d bytes as of %s", bytes, fresh)
	}
	c.residuals.Drop(web.ID)
}

// TestCheckIdle: another node says for how long, within bounds.
func TestCheckIdle(t *testing.T) {
	for keep, good := range map[float64]bool{0: true, 60: true, 3600: true, 3601: false, -1: false,
		math.Inf(1): false, math.NaN(): false} {
		if err := CheckIdle(keep); (err == nil) != good {
			t.Errorf("%v s: %v", keep, err)
		}
	}
}
