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

// garbageAdapter is the adapter of an engine with some containers. It fails to remove the data of one
// container that the engine has removed.
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

// TestGarbageCollection checks that containers that the engine has removed are forgotten unless they are
// moving, even if that fails for another container, and that existing containers are not.
func TestGarbageCollection(t *testing.T) {
	e := awayEngine(t)
	there, removed, arriving, came := strings.Repeat("1", 64), strings.Repeat("2", 64),
		strings.Repeat("3", 64), strings.Repeat("4", 64)
	fails := strings.Repeat("0", 64)
	adapt(e, &garbageAdapter{all: []Container{{ID: "own" + there,
		Container: engine.Container{Definition: engine.Definition{ID: there}}}}, fails: "own" + fails})
	for _, id := range []string{fails, there, removed, arriving, came} {
		must(t, errors.Join(e.records.remember(id, "own"+id), save(e.records.passedPath(id), []string{})))
		dir, err := e.lookup.restoreDir("own" + id)
		must(t, err)
		must(t, os.MkdirAll(dir.CRIU(), 0o700))
		must(t, makePrivate(e.records.private(id)))
	}
	must(t, save(e.records.arrivalPath(arriving), arrivalRecord{}))
	must(t, save(e.records.camePath(came), cameRecord{}))
	if _, err := e.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.gcActive.Lock() // waits until it has finished
	for id, want := range map[string]bool{fails: true, there: true, removed: false, arriving: true,
		came: true} {
		if durable.Exists(e.records.remembered(id)) != want ||
			durable.Exists(e.records.private(id)) != want ||
			hasRestoreDir(t, e, id) != want || durable.Exists(e.records.passedPath(id)) != want {
			t.Errorf("%.4s is known: %v; has records: %v, and a restore directory: %v; want %v", id,
				durable.Exists(e.records.remembered(id)), durable.Exists(e.records.private(id)),
				hasRestoreDir(t, e, id),
				want)
		}
	}
}

// hasRestoreDir reports whether a container that has arrived has its restore directory.
func hasRestoreDir(t *testing.T, e *Engine, id string) bool {
	t.Helper()
	dir, err := e.lookup.restoreDir("own" + id)
	must(t, err)
	return durable.Exists(dir.Path())
}
