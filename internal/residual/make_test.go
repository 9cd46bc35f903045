package residual

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// newTestCopies keeps its copies in usual files: only root can make others.
func newTestCopies(t *testing.T, limit int64) *Copies {
	t.Helper()
	return New(Config{Limit: limit, File: os.Create})
}

// store is a store with so many pages.
func store(t *testing.T, pages int) *memory.Store {
	t.Helper()
	s, err := memory.NewStore(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if pages > 0 {
		run := memory.Run{Task: 1, Pages: uint32(pages)}
		if err := s.Put(run, make([]byte, pages*memory.PageSize())); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

var web = Origin{
	ID: "0123456789abcdef", Container: "web", ContainerID: "0a1b2c", Peer: "a", Node: "b", Idle: true,
}

// TestTake: the pages of a store become a copy, which is described, extended, and removed by a user.
func TestTake(t *testing.T) {
	c, of := newTestCopies(t, 0), web
	of.Fresh = time.Now()
	made, err := c.Take(of, store(t, 3), filepath.Join(t.TempDir(), "park"), time.Minute)
	if err != nil || !made.Whole() || made.Bytes() < 3*int64(memory.PageSize()) {
		t.Fatalf("%+v, %v", made, err)
	}
	if _, _, there := c.Holds(of.ContainerID); there {
		t.Error("it is there before it was added")
	}
	c.Add(made)
	bytes, fresh, there := c.Holds(of.ContainerID)
	if !there || bytes != made.Bytes() || !fresh.Equal(of.Fresh) {
		t.Errorf("%d bytes as of %s, there: %v", bytes, fresh, there)
	}
	told := made.Describe()
	if told.State != migration.StageIdle || told.Kind != migration.StagedCopy || told.Source != "a" ||
		told.Target != "b" || told.Container != "web" || told.MemoryBytes != made.Bytes() {
		t.Errorf("%+v", told)
	}
	later := time.Now().Add(time.Hour)
	if c.Extend(of.ContainerID, later) != made || c.Extend(of.ContainerID, time.Now()) != made ||
		!made.Describe().Until.Equal(later) || c.Extend("0b", later) != nil {
		t.Errorf("it stays until %s, not %s", made.Describe().Until, later)
	}
	if c.Remove("web", "c") || c.Remove("cache", "a") || !c.Remove("0a1b", "a") || c.Remove("web", "a") {
		t.Error("the wrong copy was removed")
	}
}

// TestTakePart: a copy of which not all has come, or for all of which there is no room, is not whole.
func TestTakePart(t *testing.T) {
	c, of := newTestCopies(t, 0), web
	of.Partial = true
	part, err := c.Take(of, store(t, 3), filepath.Join(t.TempDir(), "park"), time.Minute)
	if err != nil || part.Whole() {
		t.Fatalf("of which not all has come: %v", err)
	}
	c.Add(part)
	if bytes, fresh, _ := c.Holds(of.ContainerID); bytes == 0 || !fresh.IsZero() {
		t.Errorf("%d bytes as of %s", bytes, fresh)
	}
	small := newTestCopies(t, 12*int64(memory.PageSize()))
	full := store(t, 8)
	if err := full.Put(memory.Run{Task: 2, Pages: 8}, make([]byte, 8*memory.PageSize())); err != nil {
		t.Fatal(err)
	}
	cut, err := small.Take(web, full, filepath.Join(t.TempDir(), "park"), time.Minute)
	if !errors.Is(err, memory.ErrStoreFull) || cut == nil || cut.Whole() {
		t.Errorf("without room: %+v, %v", cut, err)
	}
	c.Yield(1)
	if err := cut.pages.Close(); err != nil {
		t.Error(err)
	}
}

// TestTakeNothing: there is no copy without pages, nor without a file for them. An older copy is gone.
func TestTakeNothing(t *testing.T) {
	c := newTestCopies(t, 0)
	dir := filepath.Join(t.TempDir(), "park")
	older, err := c.Take(web, store(t, 1), dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	c.Add(older)
	if made, err := c.Take(web, store(t, 0), dir, time.Minute); made != nil || err != nil {
		t.Errorf("of an empty store: %+v, %v", made, err)
	}
	if len(c.List()) > 0 {
		t.Error("the older copy is there")
	}
	missing := filepath.Join(dir, "is no directory")
	if made, err := c.Take(web, store(t, 1), missing, time.Minute); made != nil || err == nil {
		t.Errorf("without a file: %+v, %v", made, err)
	}
	if made, err := c.Read(t.Context(), web, 1, missing, time.Minute, nil); made != nil || err == nil {
		t.Errorf("without a file: %+v, %v", made, err)
	}
}

// TestReadFails: processes that are not known leave no copy.
func TestReadFails(t *testing.T) {
	c, failed := newTestCopies(t, 0), errors.New("the engine does not answer")
	made, err := c.Read(t.Context(), web, 1, filepath.Join(t.TempDir(), "footprint"), time.Minute,
		func() ([]int, error) { return nil, failed })
	if made != nil || !errors.Is(err, failed) {
		t.Errorf("%+v, %v", made, err)
	}
}
