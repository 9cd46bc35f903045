package controller

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
)

// roundIfAsked is its first round, or the one that it was asked for.
func (g *fakeStage) roundIfAsked(now time.Time) {
	if g.told.State != migration.StageEnded && g.told.Rounds <= g.refreshed {
		g.round(now)
	}
}

// TestPlacementNotKept: a node that keeps nothing of a copy, or a part, is tried ever less often,
// although each round goes well.
func TestPlacementNotKept(t *testing.T) {
	for name, most := range map[string]int64{"nothing": 0, "a part": 400} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			w, f := newTestPlacements(t, placement.Policy{Nearest: 2})
			w.full = map[string]int64{"b": most}
			at, failures := 0.0, 0
			for ; at < 600; at++ {
				w.at(f, at)
				w.stages[len(w.stages)-1].roundIfAsked(w.Now)
				p := f.snapshot()
				if c := p.At("b"); c.Unkept > failures {
					if failures++; c.Failures != failures || !c.Fresh.IsZero() || c.Bytes != most ||
						c.Error != errNotKept.Error() {
						t.Fatalf("after %d times: %+v", failures, c)
					}
				}
			}
			if failures < 5 || failures > 16 {
				t.Errorf("it was tried %d times in ten minutes", failures)
			}
			delete(w.full, "b")
			for ; at < 720; at++ {
				w.at(f, at)
				w.stages[len(w.stages)-1].roundIfAsked(w.Now)
			}
			p := f.snapshot()
			if c := p.At("b"); c.Unkept != 0 || c.Failures != 0 || c.Fresh.IsZero() {
				t.Errorf("when there is room again: %+v", c)
			}
		})
	}
}

// TestPlacementPartKept: of a copy that a node has given up in part none is whole.
func TestPlacementPartKept(t *testing.T) {
	w, f := newTestPlacements(t, placement.Policy{Nearest: 1})
	c := f.policy.Make("b")
	c.Bytes, c.Fresh = 1000, time.Now()
	w.idle["b"], w.full = 1000, map[string]int64{"b": 400}
	w.at(f, 0)
	if p := f.snapshot(); !p.At("b").Fresh.IsZero() || p.At("b").Bytes != 400 {
		t.Errorf("%+v", p)
	}
}

// TestPlacementCloses: a policy that comes while the agent ends is refused at once.
func TestPlacementCloses(t *testing.T) {
	_, f := newTestPlacements(t, placement.Policy{Nearest: 1})
	go f.run()
	f.owner.Close()
	if err := f.owner.set(f.snapshot()); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("error %v", err)
	}
}

// TestPlacementLeftAfterEnd: a policy that has ended leaves no file, whatever is noted of it later; and
// what is kept is not forgotten by a step that was under way when the container left.
func TestPlacementLeftAfterEnd(t *testing.T) {
	w, f := newTestPlacements(t, onPath("b", 1.0, "a", 60.0))
	f.owner.Left(testContainer, "b", testMigration, placement.Copy{Node: "a", Bytes: 7})
	f.policy.Make("c")
	if err := f.save(time.Now(), true); err != nil {
		t.Fatal(err)
	}
	again := newTestController(t, f.owner.dir, w)
	if err := again.read(testContainer); err != nil {
		t.Fatal(err)
	}
	p := again.all[testContainer].snapshot()
	if p.At("a") == nil || p.At("a").Bytes != 7 || p.At("c") == nil ||
		again.all[testContainer].goneTo() != (gone{"b", testMigration}) {
		t.Errorf("after a restart: %+v", p)
	}
	f.off(t.Context())
	if err := f.leave(gone{"d", testMigration}, placement.Copy{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.owner.path(testContainer)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its file: %v", err)
	}
}

// TestPlacementNotSaved: what could not be written is written later, and not all the time.
func TestPlacementNotSaved(t *testing.T) {
	_, f := newTestPlacements(t, placement.Policy{Nearest: 1})
	dir, now := f.owner.dir, time.Now()
	f.owner.dir = filepath.Join(dir, "none")
	f.policy.Make("b").SentBytes = 5
	if err := f.save(now.Add(saveEvery), false); err == nil {
		t.Fatal("it was saved")
	}
	f.owner.dir = dir
	read := func() placement.Policy {
		again := newTestController(t, dir, nil)
		if err := again.read(testContainer); err != nil {
			t.Fatal(err)
		}
		return again.all[testContainer].snapshot()
	}
	if err := f.save(now.Add(saveEvery+time.Second), false); err != nil || read().At("b") != nil {
		t.Errorf("it is tried again at once: %v", err)
	}
	if err := f.save(now.Add(2*saveEvery), false); err != nil || read().At("b") == nil {
		t.Errorf("it is never tried again: %v", err)
	}
}
