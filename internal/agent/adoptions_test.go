package agent

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestRemovedByItsEngine: a container is taken for removed if its engine answers and has it no more, and nothing moves it; one that an
// earlier agent has noted, too.
func TestRemovedByItsEngine(t *testing.T) {
	a := newVolumeAgent(t)
	path := filepath.Join(a.config.StateDir, "adoptions.json")
	a.adoptions = &adoptions{path: path}
	note := func(id, engine string) adoption {
		one := adoption{Container: id, Engine: engine, Address: netip.MustParseAddr("10.201.0.5")}
		if err := errors.Join(a.adoptions.note(one), a.adoptions.note(one)); err != nil {
			t.Fatal(err)
		}
		return one
	}
	here, gone := note(strings.Repeat("a", 64), "docker"), note(testContainer, "docker")
	note(strings.Repeat("c", 64), "lxc") // is not there to tell
	other := &otherEngine{has: engine.Definition{EngineName: "docker", ID: here.Container}}
	a.routed = []engine.Engine{other}
	a.adoptions = &adoptions{path: path}
	if found, err := a.removed(t.Context()); err != nil || len(found) != 1 || found[0] != gone {
		t.Errorf("%+v, %v", found, err)
	}
	other.down = errors.New("no answer")
	if found, err := a.removed(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("its engine does not answer: %+v, %v", found, err)
	}
	other.down = nil
	move := endedMove(t, a, testMigration, migration.Source, migration.Moved, time.Now())
	over := move.done
	move.done = make(chan struct{})
	if found, err := a.removed(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("it is moved: %+v, %v", found, err)
	}
	move.done = over
	if err := a.adoptions.drop(gone.Container); err != nil {
		t.Fatal(err)
	}
	if found, err := a.removed(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("it has left: %+v, %v", found, err)
	}
}
