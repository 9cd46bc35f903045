package agent

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/migration"
)

// TestRemovedByItsEngine: a container is taken for removed if its engine has answered for some time
// and has it no more, its first process is dead, and nothing moves it; one that an earlier agent
// has noted, too.
func TestRemovedByItsEngine(t *testing.T) {
	a := newVolumeAgent(t)
	path := filepath.Join(a.config.StateDir, "adoptions.json")
	a.adoptions = &adoptions{path: path}
	note := func(id, engine string, first checkpoint.Identity) adoption {
		one := adoption{Container: id, Engine: engine, Address: netip.MustParseAddr("10.201.0.5"),
			First: first}
		a.adoptions.note(one)
		return one
	}
	self, err := checkpoint.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	here, gone := note(strings.Repeat("a", 64), "docker", checkpoint.Identity{}),
		note(testContainer, "docker", checkpoint.Identity{})
	note(strings.Repeat("c", 64), "lxc", checkpoint.Identity{}) // is not there to tell
	note(strings.Repeat("d", 64), "docker", self)               // runs
	if err := a.adoptions.save(); err != nil {
		t.Fatal(err)
	}
	other := &otherEngine{has: engine.Definition{EngineName: "docker", ID: here.Container}}
	a.routed = []engine.Engine{other}
	a.adoptions = &adoptions{path: path}
	now := time.Now()
	look := func(what string, after time.Duration, want ...adoption) {
		t.Helper()
		now = now.Add(after)
		if found := a.removed(t.Context(), now); len(found) != len(want) || len(found) == 1 &&
			found[0] != want[0] {
			t.Errorf("%s: %+v", what, found)
		}
	}
	look("first look", 0)
	look("at once", time.Millisecond)
	look("no more", missingFor, gone)
	other.down = errors.New("no answer")
	look("its engine does not answer", missingFor)
	other.down = nil
	look("answers again", missingFor)
	move := endedMove(t, a, testMigration, migration.Source, migration.RolledBack, now)
	over := move.done
	move.done = make(chan struct{})
	look("it is moved", missingFor)
	move.done = over
	look("moved no more", missingFor)
	look("no more after all", missingFor, gone)
	a.adoptions.drop(gone.Container)
	look("it has left", missingFor)
}

// TestAddressLeavesToo: what was noted of a container that runs elsewhere gives nothing back.
// Giving back would ask the network, of which there is none here.
func TestAddressLeavesToo(t *testing.T) {
	one := adoption{Container: testContainer, Engine: "docker", Address: netip.MustParseAddr("10.201.0.5")}
	for what, leave := range map[string]func(a *Agent){
		"moved": func(a *Agent) {
			endedMove(t, a, testMigration, migration.Source, migration.Moved,
				time.Now())
		},
		"taken back": func(a *Agent) {
			endedMove(t, a, testMigration, migration.Target, migration.RolledBack,
				time.Now())
		},
		"told of": func(a *Agent) {
			a.locations.MovedTo("a", engine.Definition{ID: one.Container,
				Network: engine.Network{Address: one.Address}})
		},
	} {
		a := newVolumeAgent(t)
		a.locations, a.adoptions = newLocations(a),
			&adoptions{path: filepath.Join(a.config.StateDir, "adoptions.json")}
		a.adoptions.note(one)
		leave(a)
		if err := a.forgetAdopted(one); err != nil || len(a.adoptions.list()) != 0 {
			t.Errorf("%s: %v, %v", what, err, a.adoptions.list())
		}
	}
}

// TestNotedOnlyIfHere: a container that its engine has no more when it is noted, or with another
// process, is not.
func TestNotedOnlyIfHere(t *testing.T) {
	a := newVolumeAgent(t)
	a.locations, a.adoptions = newLocations(a),
		&adoptions{path: filepath.Join(a.config.StateDir, "adoptions.json")}
	has := engine.Definition{EngineName: "docker", ID: strings.Repeat("a", 64)}
	a.engines = engine.NewSet(a.embedded, &otherEngine{has: has})
	for _, id := range []string{testContainer, has.ID} {
		a.noteAdopted(t.Context(),
			engine.Container{Definition: engine.Definition{EngineName: "docker", ID: id}, PID: os.Getpid()})
	}
	if noted := a.adoptions.list(); len(noted) != 0 {
		t.Errorf("%+v", noted)
	}
}

// TestNotesFailNothing: a damaged file is begun anew, and one that cannot be written is written later.
func TestNotesFailNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "later", "adoptions.json")
	n := &adoptions{path: path}
	n.note(adoption{Container: testContainer})
	if err := n.save(); err == nil || len(n.list()) != 1 {
		t.Errorf("no directory: %v, %v", err, n.list())
	}
	err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("{"), 0o600))
	n = &adoptions{path: path}
	n.drop(testContainer)
	n.note(adoption{Container: testContainer})
	if err := errors.Join(err, n.save()); err != nil {
		t.Error(err)
	}
	if all := (&adoptions{path: path}).list(); len(all) != 1 {
		t.Errorf("%v", all)
	}
}
