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

// reusing is the adapter of an engine that has no containers and reuses IDs. Its Gone waits until it is
// released.
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

// TestNamesakeWaits checks that no container with a reused ID is made while the previous container's data
// is being removed.
func TestNamesakeWaits(t *testing.T) {
	e := awayEngine(t)
	id := strings.Repeat("1", 64)
	a := &reusing{began: make(chan struct{}), goOn: make(chan struct{})}
	adapt(e, a)
	must(t, e.records.remember(id, "own"))
	_, err := e.List(t.Context())
	must(t, err)
	<-a.began
	if unlock, free := e.lookup.engineIDs.TryLock("own"); free {
		unlock()
		t.Error("another one could be made")
	}
	close(a.goOn)
	e.gcActive.Lock() // waits until it has finished
	if durable.Exists(e.records.remembered(id)) {
		t.Error("it is not forgotten")
	}
}

// TestCreateIsNotGivenUp checks that a running Create is awaited, even after the migration was given up.
func TestCreateIsNotGivenUp(t *testing.T) {
	e := awayEngine(t)
	ctx, giveUp := context.WithCancel(t.Context())
	adapt(e, &reusing{creates: giveUp})
	record := &arrivalRecord{}
	a := &arrival{arrivals: e.arrivals, definition: engine.Definition{ID: strings.Repeat("1", 64)}}
	if err := a.make(ctx, record); err != nil || record.EngineID != "own" {
		t.Errorf("made %q, %v", record.EngineID, err)
	}
}

// TestNamesakeMade checks that nothing of a removed container is deleted by its ID while a new container
// with the same ID is being made.
func TestNamesakeMade(t *testing.T) {
	e := awayEngine(t)
	id, other := strings.Repeat("1", 64), strings.Repeat("2", 64)
	adapt(e, &reusing{creates: func() {
		if unlock, free := e.lookup.engineIDs.TryLock("own"); free {
			unlock()
			t.Error("what another one had could be taken away meanwhile")
		}
	}})
	must(t, e.records.remember(id, "own"))
	a := &arrival{arrivals: e.arrivals, definition: engine.Definition{ID: other}}
	must(t, a.make(t.Context(), &arrivalRecord{}))
	for one, want := range map[string]string{id: id, other: "own"} {
		if engineID, err := e.lookup.engineID(one); engineID != want || err != nil {
			t.Errorf("%.4s has the id %.4s, want %.4s (%v)", one, engineID, want, err)
		}
	}
	used, err := e.lookup.whileUnused(t.Context(), id, "own",
		func() error { t.Error("it is taken from who has it now"); return nil })
	if !used || err != nil {
		t.Errorf("it is another one's: %v (%v)", used, err)
	}
}

// TestNamesakeComes checks that data kept by a reused ID stays with the new container, even before its
// engine knows it.
func TestNamesakeComes(t *testing.T) {
	id, other := strings.Repeat("1", 64), strings.Repeat("2", 64)
	for _, disowned := range []bool{true, false} {
		e := awayEngine(t)
		adapt(e, &reusing{garbageAdapter: garbageAdapter{fails: "own"}})
		must(t, e.records.remember(id, "own"))
		dir := openRestoreDir(t, e)
		must(t, dir.Admit(shim.Job{}))
		if disowned {
			must(t, e.lookup.disown("own", other))
			must(t, e.records.remember(other, "own"))
		} else {
			adapt(e, &reusing{})
		}
		must(t, e.remains.forgetGone(t.Context(), id))
		if !dir.Waits() || durable.Exists(e.records.remembered(id)) ||
			durable.Exists(e.records.remembered(other)) != disowned {
			t.Errorf(
				"disowned: %v; the other one's restore directory: %v; it is known: %v, the other one: %v",
				disowned,
				dir.Waits(), durable.Exists(e.records.remembered(id)),
				durable.Exists(e.records.remembered(other)))
		}
	}
}

// TestSettleNamesake covers a container that arrived, ended and was deleted, and whose ID another container
// then got. The engine is told nothing about the new container, and the old container's data waits for the
// new one's end.
func TestSettleNamesake(t *testing.T) {
	e := awayEngine(t)
	id := strings.Repeat("1", 64)
	a := &reusing{garbageAdapter: garbageAdapter{all: []Container{{ID: "own"}}}}
	adapt(e, a)
	must(t, e.records.remember(id, "own"))
	must(t, save(e.records.arrivalPath(id), arrivalRecord{EngineID: "own"}))
	dir := openRestoreDir(t, e)
	must(t, dir.Admit(shim.Job{}))
	must(t, e.endings.settle(t.Context(), id))
	if dir.Waits() || len(a.did) > 0 || durable.Exists(e.records.camePath(id)) ||
		durable.Exists(e.records.arrivalPath(id)) {
		t.Errorf("its restore directory waits: %v; the engine was told %q; it came: %v, and arrives: %v",
			dir.Waits(), a.did, durable.Exists(e.records.camePath(id)),
			durable.Exists(e.records.arrivalPath(id)))
	}
	must(t, e.forgetRemoved(t.Context(), id))
	if !durable.Exists(e.records.remembered(id)) {
		t.Error("what it had is forgotten before it was taken away")
	}
	a.all = nil
	must(t, e.forgetRemoved(t.Context(), id))
	if durable.Exists(e.records.remembered(id)) || durable.Exists(dir.Path()) {
		t.Error("it is not forgotten")
	}
}

// openRestoreDir makes the restore directory of the container with the engine ID "own".
func openRestoreDir(t *testing.T, e *Engine) shim.Dir {
	t.Helper()
	dir, err := e.lookup.restoreDir("own")
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(dir.Path(), "criu"), 0o700))
	return dir
}
