package controller

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
)

// TestPlacementEngineAway: that an engine is away, also when the agent begins, does not end the
// policies of its containers.
func TestPlacementEngineAway(t *testing.T) {
	n := newFakeNode(t)
	n.away = engine.ErrAway
	w, p := newObserver(n.config(t)), placement.Policy{Container: testContainer, Engine: "docker", Nearest: 1}
	if _, _, err := w.situation(t.Context(), p, nil); !errors.Is(err, engine.ErrAway) {
		t.Errorf("an engine that is away: %v", err)
	}
	n.away, n.container.Definition.ID = nil, "another"
	if _, where, err := w.situation(t.Context(), p, nil); err != nil || where != isMissing {
		t.Errorf("it is back without the container: %v, %v", where, err)
	}
	n.container.Definition.ID, n.container.State = testContainer, engine.Exited
	if _, where, err := w.situation(t.Context(), p, nil); err != nil || where != isMissing {
		t.Errorf("it has ended: %v, %v", where, err)
	}
	n.moving = true
	if _, where, err := w.situation(t.Context(), p, nil); err != nil || where != isMoving {
		t.Errorf("it is being migrated: %v, %v", where, err)
	}
}

// TestSituation: what has been looked at, measured and asked lately is not looked at again.
func TestSituation(t *testing.T) {
	n := newFakeNode(t)
	n.bandwidth, n.silent["c"] = 0, true
	w, p := newObserver(n.config(t)), placement.Policy{Container: testContainer,
		Path: []placement.Stop{{Node: "b"}, {Node: "c"}, {Node: "a"}, {Node: "x"}}}
	for range 3 {
		s, where, err := w.situation(t.Context(), p, nil)
		if err != nil || where != isHere || s.Node != "a" || s.MemoryBytes != n.memory || len(s.Nodes) != 2 {
			t.Fatalf("%+v, %v, %v", s, where, err)
		}
		if b, c := s.Nodes[0], s.Nodes[1]; !b.Reachable || c.Reachable || b.RTT != time.Millisecond ||
			b.Need.Bytes <= c.Need.Bytes { // b lacks a layer; what c lacks is not known
			t.Errorf("b %+v, c %+v", b, c)
		}
	}
	for what, want := range map[string]int{"look": 1, "measure": 1, "ask": 1, "link b": 1, "link c": 0,
		"link a": 0} {
		if n.counts[what] != want {
			t.Errorf("%s: %d times, want %d", what, n.counts[what], want)
		}
	}
}

// TestNeed: a copy that is there costs what was written since, and one that is being made what is left.
func TestNeed(t *testing.T) {
	n := newFakeNode(t)
	n.memory = 1 << 30
	w, p := newObserver(n.config(t)), placement.Policy{Container: testContainer, Nearest: 1}
	need := func(live Live) placement.Cost {
		t.Helper()
		s, _, err := w.situation(t.Context(), p, live)
		if err != nil {
			t.Fatal(err)
		}
		return s.Nodes[0].Need
	}
	whole := need(nil)
	live := &fakeStage{node: "b", told: migration.Stage{SentBytes: int64(whole.Bytes / 2)}}
	if half := need(live); half.Bytes < 0.4*whole.Bytes || half.Bytes > 0.6*whole.Bytes {
		t.Errorf("with half of it there: %+v of %+v", half, whole)
	}
	p.Make("b").Fresh = time.Now().Add(-10 * time.Second)
	idle := need(nil)
	if idle.Bytes >= whole.Bytes/10 || idle.Seconds <= 1 {
		t.Errorf("an idle copy is read as a whole, and little is sent: %+v of %+v", idle, whole)
	}
	live.told = migration.Stage{Rounds: 2, DirtyingRate: 5e7}
	if busy := need(live); busy.Bytes <= idle.Bytes {
		t.Errorf("a live copy of a container that writes more than the curve says: %+v", busy)
	}
}

// TestKeep: what another node says of a copy is bounded; one that does not answer is not asked.
func TestKeep(t *testing.T) {
	n := newFakeNode(t)
	w := newObserver(n.config(t))
	for _, c := range []struct {
		says *api.KeepReply
		want idleCopy
	}{
		{&api.KeepReply{MemoryBytes: 5}, idleCopy{5, true}},
		{&api.KeepReply{MemoryBytes: 5, Incomplete: true}, idleCopy{5, false}},
		{&api.KeepReply{}, idleCopy{}},
	} {
		n.keeps = c.says
		if got, err := w.keep(t.Context(), testContainer, "b", time.Hour); err != nil || got != c.want {
			t.Errorf("%+v: %+v, %v", c.says, got, err)
		}
	}
	for _, bytes := range []int64{-1, placement.MaxBytes + 1} {
		n.keeps = &api.KeepReply{MemoryBytes: bytes}
		if _, err := w.keep(t.Context(), testContainer, "b", time.Hour); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	if _, err := w.keep(t.Context(), testContainer, "x", 0); !errors.Is(err, api.ErrRefused) {
		t.Errorf("a node that is not known: %v", err)
	}
	n.silent["b"], n.counts["keep"] = true, 0
	_, err := w.keep(t.Context(), testContainer, "b", 0)
	if !errors.Is(err, errAway) || n.counts["keep"] > 0 {
		t.Errorf("a node that does not answer: %v", err)
	}
	n.refusal = status.Error(codes.PermissionDenied, "no")
	err = w.follow(t.Context(), gone{"c", testMigration}, placement.Policy{Container: testContainer})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a refusal: %v", err)
	}
}

// TestStage: a copy is kept for as long as the policy lasts, within what is allowed.
func TestStage(t *testing.T) {
	n := newFakeNode(t)
	w := newObserver(n.config(t))
	for _, until := range []time.Time{time.Now().Add(-time.Hour), time.Now().AddDate(10, 0, 0)} {
		live, err := w.stage(t.Context(), testContainer, "b", 0, until)
		if err != nil || live.Target() != "b" {
			t.Errorf("until %s: %v", until, err)
		}
	}
	if _, err := w.stage(t.Context(), testContainer, "b", -1, time.Now()); err == nil || len(n.began) != 2 {
		t.Errorf("with a limit below zero: %v", err)
	}
}

// TestObserverForgets: nothing is kept of a container without a policy.
func TestObserverForgets(t *testing.T) {
	w := newObserver(Config{})
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
