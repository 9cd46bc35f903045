package oci

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// garbageAdapter is the adapter of an engine with some containers. It fails to remove what is left of one
// that the engine has removed.
type garbageAdapter struct {
	booted
	all   []Container
	fails string
}

func (a *garbageAdapter) Gone(engineID string) error {
	if engineID == a.fails {
		return errors.New("a plugin fails")
	}
	return nil
}

func (a *garbageAdapter) List(context.Context, func(string) bool) ([]Container, error) {
	return a.all, nil
}

func (a *garbageAdapter) Find(_ context.Context, engineID string) (Container, error) {
	for _, found := range a.all {
		if found.ID == engineID {
			return found, nil
		}
	}
	return Container{}, engine.ErrNotFound
}

// TestGarbageCollection: what was removed by the engine is forgotten, unless it is moving, also if that fails
// for another one; what is there is not.
func TestGarbageCollection(t *testing.T) {
	e := awayEngine(t)
	there, removed, arriving, came := strings.Repeat("1", 64), strings.Repeat("2", 64),
		strings.Repeat("3", 64), strings.Repeat("4", 64)
	fails := strings.Repeat("0", 64)
	e.adapter = &garbageAdapter{all: []Container{{ID: "own" + there,
		Container: engine.Container{Definition: engine.Definition{ID: there}}}}, fails: "own" + fails}
	for _, id := range []string{fails, there, removed, arriving, came} {
		must(t, errors.Join(e.remember(id, "own"+id), save(e.passedPath(id), []string{})))
		dir, err := e.restoreDir("own" + id)
		must(t, err)
		must(t, os.MkdirAll(dir.CRIU(), 0o700))
		must(t, makePrivate(e.private(id)))
	}
	must(t, save(e.arrivalPath(arriving), arrivalRecord{}))
	must(t, save(e.camePath(came), cameRecord{}))
	if _, err := e.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.gcActive.Lock() // it is over
	for id, want := range map[string]bool{fails: true, there: true, removed: false, arriving: true,
		came: true} {
		if durable.Exists(e.remembered(id)) != want || durable.Exists(e.private(id)) != want ||
			hasRestoreDir(t, e, id) != want || durable.Exists(e.passedPath(id)) != want {
			t.Errorf("%.4s is known: %v; has records: %v, and a restore directory: %v; want %v", id,
				durable.Exists(e.remembered(id)), durable.Exists(e.private(id)), hasRestoreDir(t, e, id),
				want)
		}
	}
}

// hasRestoreDir reports whether a container that has arrived has its restore directory.
func hasRestoreDir(t *testing.T, e *Engine, id string) bool {
	t.Helper()
	dir, err := e.restoreDir("own" + id)
	must(t, err)
	return durable.Exists(dir.Path())
}
