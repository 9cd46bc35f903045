package agent

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

// TestPlacementEngineAway: that an engine is away, also when the agent begins, does not end the
// policies of its containers.
func TestPlacementEngineAway(t *testing.T) {
	a := newVolumeAgent(t)
	docker := &otherEngine{has: engine.Definition{EngineName: "docker", ID: testContainer, Name: "web"},
		down: engine.ErrAway}
	a.engines = engine.NewSet(a.embedded, docker)
	a.moves = newMoves(a)
	w, p := newObserver(a), placement.Policy{Container: testContainer, Engine: "docker", Nearest: 1}
	if _, where, err := w.situation(t.Context(), p, nil); !errors.Is(err, engine.ErrAway) {
		t.Errorf("an engine that is away: %v, %v", where, err)
	}
	docker.down, docker.has.ID = nil, "another"
	if _, where, err := w.situation(t.Context(), p, nil); err != nil || where != isMissing {
		t.Errorf("it is back without the container: %v, %v", where, err)
	}
}

// TestObserverForgets: nothing is kept of a container without a policy.
func TestObserverForgets(t *testing.T) {
	w := newObserver(nil)
	for _, container := range []string{"x", "y"} {
		w.looked[container] = lookedAt{}
		w.layers[layersAt{container, "b"}] = 1
		w.once(container, time.Hour)
	}
	w.forget("x")
	if len(w.looked) != 1 || len(w.layers) != 1 || len(w.tried) != 1 {
		t.Errorf("%+v, %+v, %+v", w.looked, w.layers, w.tried)
	}
}

// TestPlacementCloses: a policy that comes while the agent ends is refused at once.
func TestPlacementCloses(t *testing.T) {
	_, f := newTestPlacements(t, placement.Policy{Nearest: 1})
	go f.run()
	f.owner.close()
	if err := f.owner.set(f.snapshot()); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("error %v", err)
	}
}

// TestPlacementLeftAfterEnd: a policy that has ended leaves no file, whatever is noted of it later; and
// what is kept is not forgotten by a step that was under way when the container left.
func TestPlacementLeftAfterEnd(t *testing.T) {
	w, f := newTestPlacements(t, onPath("b", 1.0, "a", 60.0))
	f.owner.left(testContainer, gone{"b", testMigration}, placement.Copy{Node: "a", Bytes: 7})
	f.policy.Make("c")
	if err := f.save(time.Now(), true); err != nil {
		t.Fatal(err)
	}
	again := &placements{dir: f.owner.dir, world: w, ctx: t.Context(), log: f.owner.log,
		all: map[string]*follower{}}
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
	if err := f.save(now.Add(placementSave), false); err == nil {
		t.Fatal("it was saved")
	}
	f.owner.dir = dir
	read := func() placement.Policy {
		again := &placements{dir: dir, ctx: t.Context(), all: map[string]*follower{}}
		if err := again.read(testContainer); err != nil {
			t.Fatal(err)
		}
		return again.all[testContainer].snapshot()
	}
	if err := f.save(now.Add(placementSave+time.Second), false); err != nil || read().At("b") != nil {
		t.Errorf("it is tried again at once: %v", err)
	}
	if err := f.save(now.Add(2*placementSave), false); err != nil || read().At("b") == nil {
		t.Errorf("it is never tried again: %v", err)
	}
}

// TestPolicyTakenOnce: what a user wants at the new node stays, if the policy that came with the
// container comes late, or again.
func TestPolicyTakenOnce(t *testing.T) {
	a := newTestAgent(t)
	w, f := newTestPlacements(t, placement.Policy{Nearest: 1})
	w.where = isMoving // nothing is done by it
	s, theirs := f.owner, f.snapshot()
	theirs.Nearest = 3
	first := endedMove(t, a, "0000000000000001", migration.Target, migration.Moved, time.Now())
	if a.moves.broughtBy(testContainer) != first {
		t.Fatal("nothing is known of the migration")
	}
	if err := s.receive(first, theirs); err != nil || s.of(testContainer).snapshot().Nearest != 3 {
		t.Fatalf("not taken: %v", err)
	}
	ours := f.snapshot()
	ours.Nearest = 2
	if err := s.order(first, ours); err != nil {
		t.Fatal(err)
	}
	if err := s.receive(first, theirs); err != nil || s.of(testContainer).snapshot().Nearest != 2 {
		t.Errorf("it has replaced a newer one: %v", err)
	}
	s.of(testContainer).off(t.Context())
	if err := s.receive(first, theirs); err != nil || s.of(testContainer) != nil {
		t.Errorf("what was removed is back: %v", err)
	}
	second := endedMove(t, a, "0000000000000002", migration.Target, migration.Moved,
		time.Now().Add(time.Second))
	if a.moves.broughtBy(testContainer) != second {
		t.Error("the first migration counts")
	}
	if err := s.order(second, ours); err != nil {
		t.Fatal(err)
	}
	if err := s.receive(second, theirs); err != nil || s.of(testContainer).snapshot().Nearest != 2 {
		t.Errorf("it was late, and has replaced what a user wants: %v", err)
	}
	endedMove(t, a, "0000000000000003", migration.Source, migration.Moved, time.Now().Add(2*time.Second))
	if a.moves.broughtBy(testContainer) != nil {
		t.Error("it has left")
	}
	s.close()
}
