package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// newUnreads has the migrations below a directory.
func newUnreads(t *testing.T) (u *Unreads, dir string) {
	t.Helper()
	dir = t.TempDir()
	return NewUnreads("b", func(id string) string { return filepath.Join(dir, id) }), dir
}

const testMigration = "0123456789abcdef"

var errDisk = errors.New("disk")

// unreadOf is a migration of a container with a volume that moves, and one that stays.
func unreadOf(container string, err error) Unread {
	entry := Entry{Definition: engine.Definition{ID: container, Volumes: []engine.Volume{
		{Name: "data", Path: "/d"}, {Name: "shared", Path: "/s", Stays: true}}}}
	entry.Record.Spec = migration.Spec{Container: container, Name: "web", Source: "a", Target: "b"}
	return NewUnread(testMigration, entry, "docker", err)
}

// TestUnreads: what cannot be read is known until it can, and its reason is news once.
func TestUnreads(t *testing.T) {
	u, _ := newUnreads(t)
	if u.Why(testMigration) != nil || u.Of("x") != "" || u.Refuse("x") != nil || len(u.List()) > 0 {
		t.Error("something is known of none")
	}
	u.Await(unreadOf("x", ErrNotAsked))
	if waiting := u.Waiting(); len(waiting) != 1 || waiting[0].Spec.ID != testMigration {
		t.Errorf("waiting: %+v", waiting)
	}
	for i, want := range []bool{true, false, true} {
		err := errDisk
		if i == 2 {
			err = ErrUnconfirmed
		}
		if news := u.Set(unreadOf("x", err)); news != want {
			t.Errorf("attempt %d: news %t", i, news)
		}
	}
	if u.Await(unreadOf("x", errDisk)); !errors.Is(u.Why(testMigration), ErrUnconfirmed) {
		t.Errorf("what the engine did not confirm is forgotten: %v", u.Why(testMigration))
	}
	other := unreadOf("y", errDisk)
	other.Spec.ID = "0000000000000000"
	u.Set(other)
	if list := u.List(); len(list) != 2 || list[0].Spec.ID != other.Spec.ID {
		t.Errorf("not sorted: %+v", list)
	}
	if u.Forget(testMigration); len(u.List()) != 1 || u.Why(testMigration) != nil {
		t.Errorf("not forgotten: %+v", u.List())
	}
}

// TestUnreadsAmong: a journal that does not name its container may be any container's.
func TestUnreadsAmong(t *testing.T) {
	u, dir := newUnreads(t)
	u.Set(unreadOf("x", errDisk))
	if u.Of("x") != testMigration || u.Of("y") != "" || u.Among("y", "z") != "" {
		t.Error("the container of a journal")
	}
	one := engine.Container{Definition: engine.Definition{ID: "x"}}
	if advice := u.Advice(one); !strings.Contains(advice, "move "+filepath.Join(dir, testMigration)+" away") {
		t.Error(advice)
	}
	u.Set(unreadOf("", errDisk))
	if u.Of("y") != testMigration || u.Among("y") != "" {
		t.Error("a journal that names no container")
	}
	u.Forget(testMigration)
	if advice := u.Advice(one); advice != "" {
		t.Error(advice)
	}
}

// TestWaitingUnreads: only a migration that waits for its engine counts as under way.
func TestWaitingUnreads(t *testing.T) {
	u, _ := newUnreads(t)
	container := engine.Definition{ID: "x", Name: "web"}
	volume := engine.Definition{ID: "y", Volumes: []engine.Volume{{Name: "data", Path: "/e"}}}
	stays := engine.Definition{ID: "z", Volumes: []engine.Volume{{Name: "shared", Path: "/s"}}}
	u.Set(unreadOf("x", errDisk))
	if u.Refuse("x") != nil || len(u.Examine(container)) > 0 || len(u.Examine(volume)) > 0 {
		t.Error("a journal that cannot be read counts as a migration under way")
	}
	u.Set(unreadOf("x", ErrNotAsked))
	if err := u.Refuse("x"); !errors.Is(err, engine.ErrBusy) || !strings.Contains(err.Error(),
		"make docker answer") || u.Refuse("y") != nil {
		t.Errorf("error %v", err)
	}
	for _, one := range []struct {
		what       string
		definition engine.Definition
		problems   int
	}{{"the container", container, 1}, {"its volume", volume, 1}, {"a volume that stays", stays, 0}} {
		problems := u.Examine(one.definition)
		if len(problems) != one.problems || len(problems) > 0 &&
			!strings.Contains(problems[0].Remedy, "make docker answer on b") {
			t.Errorf("%s: %+v", one.what, problems)
		}
	}
}

// TestCheck: nobody is told that a migration is not known as long as there is a journal of it.
func TestCheck(t *testing.T) {
	u, dir := newUnreads(t)
	if err := errors.Join(u.Check("../x"), u.Check(testMigration)); err != nil {
		t.Errorf("none is there: %v", err)
	}
	file := &Journal{Dir: filepath.Join(dir, testMigration)}
	if err := file.Write(banned(t)); err != nil {
		t.Fatal(err)
	}
	says := func(text string) {
		t.Helper()
		err := u.Check(testMigration)
		if !errors.Is(err, engine.ErrBusy) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	says("that was not read")
	u.Set(unreadOf("x", errDisk))
	says("cannot be used: disk; it is tried again")
	u.Set(unreadOf("x", ErrNotAsked))
	says("waits for engine docker")
	u.Forget(testMigration)
	if err := os.RemoveAll(file.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	says("whether there is a journal")
}

// TestReport: users are told what the agent does, and what it waits for.
func TestReport(t *testing.T) {
	for says, err := range map[string]error{
		"its journal cannot be used: disk; the agent tries again every 10s": errDisk,
		"waits for engine docker to confirm":                                ErrUnconfirmed,
	} {
		report := unreadOf("x", err).Report()
		if report.Migration != testMigration || report.Container != "web" || report.Source != "a" ||
			report.Result != migration.ResultDoubt || !strings.HasPrefix(*report.Error, says) {
			t.Errorf("%+v: %s", report, *report.Error)
		}
	}
}
