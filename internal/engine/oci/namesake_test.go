package oci

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/shim"
)

// reusing is the adapter of an engine that has no containers, and gives ids again. What it is to
// forget of one that is no more it forgets when it may.
type reusing struct {
	garbageAdapter
	began, goOn chan struct{}
	creates     func()
}

func (a *reusing) Create(ctx context.Context, _ engine.Definition, _, _ string) (string, error) {
	a.creates()
	return "own", ctx.Err()
}

func (a *reusing) EngineID(engine.Definition) (string, error) { return "own", nil }

func (a *reusing) Gone(engineID string) error {
	if a.began != nil {
		close(a.began)
		<-a.goOn
	}
	return a.garbageAdapter.Gone(engineID)
}

// TestNamesakeWaits: as long as what a container had is taken away none is made that gets the same
// id of its engine's.
func TestNamesakeWaits(t *testing.T) {
	e := awayEngine(t)
	id := strings.Repeat("1", 64)
	a := &reusing{began: make(chan struct{}), goOn: make(chan struct{})}
	e.adapter = a
	must(t, e.remember(id, "own"))
	_, err := e.List(t.Context())
	must(t, err)
	<-a.began
	if unlock, free := e.engineIDs.TryLock("own"); free {
		unlock()
		t.Error("another one could be made")
	}
	close(a.goOn)
	e.gcActive.Lock() // it is over
	if durable.Exists(e.remembered(id)) {
		t.Error("it is not forgotten")
	}
}

// TestCreateIsNotGivenUp: an engine that makes a container is waited for, also after the migration was
// given up.
func TestCreateIsNotGivenUp(t *testing.T) {
	e := awayEngine(t)
	ctx, giveUp := context.WithCancel(t.Context())
	e.adapter = &reusing{creates: giveUp}
	record := &arrivalRecord{}
	a := &arrival{engine: e, definition: engine.Definition{ID: strings.Repeat("1", 64)}}
	if err := a.make(ctx, record); err != nil || record.EngineID != "own" {
		t.Errorf("made %q, %v", record.EngineID, err)
	}
}

// TestNamesakeMade: none is made while what another one had by that id is taken away, which that
// one has no more then.
func TestNamesakeMade(t *testing.T) {
	e := awayEngine(t)
	id, other := strings.Repeat("1", 64), strings.Repeat("2", 64)
	e.adapter = &reusing{creates: func() {
		if unlock, free := e.engineIDs.TryLock("own"); free {
			unlock()
			t.Error("what another one had could be taken away meanwhile")
		}
	}}
	must(t, e.remember(id, "own"))
	a := &arrival{engine: e, definition: engine.Definition{ID: other}}
	must(t, a.make(t.Context(), &arrivalRecord{}))
	for one, want := range map[string]string{id: id, other: "own"} {
		if engineID, err := e.engineID(one); engineID != want || err != nil {
			t.Errorf("%.4s has the id %.4s, want %.4s (%v)", one, engineID, want, err)
		}
	}
	used, err := e.whileUnused(t.Context(), id, "own",
		func() error { t.Error("it is taken from who has it now"); return nil })
	if !used || err != nil {
		t.Errorf("it is another one's: %v (%v)", used, err)
	}
}

// TestNamesakeComes: what is kept by an id that another container has got stays with that one, also
// before its engine knows it.
func TestNamesakeComes(t *testing.T) {
	id, other := strings.Repeat("1", 64), strings.Repeat("2", 64)
	for _, disowned := range []bool{true, false} {
		e := awayEngine(t)
		e.adapter = &reusing{garbageAdapter: garbageAdapter{fails: "own"}}
		must(t, e.remember(id, "own"))
		dir := openRestoreDir(t, e)
		must(t, dir.Admit(shim.Job{}))
		if disowned {
			must(t, e.disown("own", other))
			must(t, e.remember(other, "own"))
		} else {
			e.adapter = &reusing{}
		}
		must(t, e.forgetGone(t.Context(), id))
		if !dir.Waits() || durable.Exists(e.remembered(id)) ||
			durable.Exists(e.remembered(other)) != disowned {
			t.Errorf(
				"disowned: %v; the other one's restore directory: %v; it is known: %v, the other one: %v",
				disowned,
				dir.Waits(), durable.Exists(e.remembered(id)), durable.Exists(e.remembered(other)))
		}
	}
}

// TestSettleNamesake: a container that has the id of one that came, and that has ended and was
// deleted since, is not taken for that: its engine is told nothing of it, and what the other one
// had waits for its end.
func TestSettleNamesake(t *testing.T) {
	e := awayEngine(t)
	id := strings.Repeat("1", 64)
	a := &reusing{garbageAdapter: garbageAdapter{all: []Container{{ID: "own"}}}}
	e.adapter = a
	must(t, e.remember(id, "own"))
	must(t, save(e.arrivalPath(id), arrivalRecord{EngineID: "own"}))
	dir := openRestoreDir(t, e)
	must(t, dir.Admit(shim.Job{}))
	must(t, e.settle(t.Context(), id))
	if dir.Waits() || len(a.did) > 0 || durable.Exists(e.camePath(id)) || durable.Exists(e.arrivalPath(id)) {
		t.Errorf("its restore directory waits: %v; the engine was told %q; it came: %v, and arrives: %v",
			dir.Waits(), a.did, durable.Exists(e.camePath(id)), durable.Exists(e.arrivalPath(id)))
	}
	must(t, e.forgetRemoved(t.Context(), id))
	if !durable.Exists(e.remembered(id)) {
		t.Error("what it had is forgotten before it was taken away")
	}
	a.all = nil
	must(t, e.forgetRemoved(t.Context(), id))
	if durable.Exists(e.remembered(id)) || durable.Exists(dir.Path()) {
		t.Error("it is not forgotten")
	}
}

// openRestoreDir makes the restore directory of the container of id "own".
func openRestoreDir(t *testing.T, e *Engine) shim.Dir {
	t.Helper()
	dir, err := e.restoreDir("own")
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(dir.Path(), "criu"), 0o700))
	return dir
}
