package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/proof"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestTreesThatMove: a volume that stays is left out, and nothing else that has its name.
func TestTreesThatMove(t *testing.T) {
	trees := []files.Tree{
		{Kind: files.Writable}, {Kind: files.Memory, Name: "shm"}, {Kind: files.VolumeOf, Name: "shm"},
		{Kind: files.VolumeOf, Name: "moves"},
		{Kind: files.Memory, Name: "/t"}, {Kind: files.VolumeOf, Name: "/b"},
	}
	n := &node{trees: trees}
	moving := engine.Definition{Volumes: []engine.Volume{
		{Name: "shm", Path: "/shared", Stays: true}, {Name: "moves", Path: "/m"},
		{Kind: engine.Tmpfs, Path: "/t", Stays: true},
		{Kind: engine.Bind, Source: "/host", Path: "/b", Stays: true},
	}}
	got, err := newMover(t, n).Trees(t.Context(), moving)
	if want := []files.Tree{trees[0], trees[1], trees[3]}; err != nil || !slices.Equal(got, want) {
		t.Errorf("these move: %v, not %v: %v", got, want, err)
	}
	if got := StayingKeys(moving); !slices.Equal(got, []string{"shm", "/t", "/b"}) {
		t.Errorf("these stay: %q", got)
	}
	n.gone = engine.ErrNotFound
	if _, err := newMover(t, n).Trees(t.Context(), moving); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("of a container that is gone: %v", err)
	}
}

// TestLeavingTrees: in mode restart, what is in memory ends with the processes.
func TestLeavingTrees(t *testing.T) {
	for mode, want := range map[migration.Mode][]files.Tree{
		migration.Cold:    {{Kind: files.Writable}, {Kind: files.Memory, Name: "shm"}},
		migration.Restart: {{Kind: files.Writable}},
	} {
		n := &node{trees: []files.Tree{{Kind: files.Writable}, {Kind: files.Memory, Name: "shm"},
			{Kind: files.VolumeOf, Name: "stays"}}}
		l := newMover(t, n).Leave(engine.Definition{Volumes: []engine.Volume{{Name: "stays", Stays: true}}},
			identity.Node{}, mode, nil)
		got, err := l.Trees(t.Context())
		if err != nil || !slices.Equal(got, want) || !slices.Equal(l.StayingKeys(), []string{"stays"}) {
			t.Errorf("%s: %v, %v, and %q stay", mode, got, err, l.StayingKeys())
		}
		n.gone = engine.ErrNotFound
		if _, err := l.Trees(t.Context()); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%s: of a container that is gone: %v", mode, err)
		}
	}
}

// TestTreesSize: the size of each volume is told, and that of all directories.
func TestTreesSize(t *testing.T) {
	data, layer := t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(data, "f"), filepath.Join(layer, "g")} {
		if err := os.WriteFile(path, make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := &node{trees: []files.Tree{{Kind: files.Writable, Path: layer},
		{Kind: files.VolumeOf, Name: "data", Path: data}}}
	definition := engine.Definition{Volumes: []engine.Volume{{Name: "data", Path: "/data"}}}
	moved := make([]migration.VolumeMoved, 1)
	total, err := newMover(t, n).TreesSize(t.Context(), definition, moved)
	if err != nil || total != 2000 || moved[0].Bytes != 1000 || moved[0].Files < 1 {
		t.Errorf("%d bytes, %+v: %v", total, moved, err)
	}
	n.trees[1].Path = filepath.Join(data, "none")
	if _, err := newMover(t, n).TreesSize(t.Context(), definition, moved); err == nil {
		t.Error("a directory that is not there has a size")
	}
}

func TestSync(t *testing.T) {
	failed := errors.New("failed")
	n := &node{}
	definition := engine.Definition{Volumes: []engine.Volume{bind(t.TempDir()), bind("/none/there"),
		{Kind: engine.Tmpfs, Path: "/t"}}}
	if err := newMover(t, n).Sync(definition); err != nil {
		t.Errorf("of a volume that is there, and one that was removed: %v", err)
	}
	n.noPlaces = failed
	if err := newMover(t, n).Sync(definition); !errors.Is(err, failed) {
		t.Errorf("of a volume whose place is not known: %v", err)
	}
	definition.Volumes[0].Stays, definition.Volumes[1].Stays = true, true
	if err := newMover(t, n).Sync(definition); err != nil {
		t.Errorf("of volumes that did not come: %v", err)
	}
}

// TestPatience: what the kernel never ends is waited for only as long as somebody wants it, and
// what has ended says how.
func TestPatience(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	err := patiently(ctx, func() error { <-never; return nil })
	if !errors.Is(err, enough) {
		t.Errorf("it was waited for: %v", err)
	}
	failed := errors.New("failed")
	if err := patiently(t.Context(), func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("how it ended: %v", err)
	}
}

// sharing is a container with a directory that both nodes mount.
func sharing(t *testing.T) (*node, *Leaving) {
	t.Helper()
	shared := bind(t.TempDir())
	n := &node{proofs: map[string]proof.Proof{"/x": {Shared: true, Locked: true}}}
	l := newMover(t, n).Leave(engine.Definition{ID: "web", Volumes: []engine.Volume{shared}},
		identity.Node{Name: "b"}, migration.Cold, func() bool { return true })
	if l.Moving().Volumes[0].Stays {
		t.Error("a volume stays before it was decided")
	}
	problems, err := l.Choose(t.Context(), "")
	if err != nil || len(problems) > 0 {
		t.Fatalf("%+v, %v", problems, err)
	}
	if !l.Moving().Volumes[0].Stays || !l.Chosen().Locked[0] {
		t.Errorf("%+v", l.Chosen())
	}
	return n, l
}

// TestProveAgain: what both nodes mounted may have been unmounted since.
func TestProveAgain(t *testing.T) {
	n, l := sharing(t)
	if problems, err := l.ProveAgain(t.Context()); err != nil || len(problems) > 0 {
		t.Errorf("it is still shared: %+v, %v", problems, err)
	}
	n.proofs["/x"] = proof.Proof{Why: "no token"}
	problems, err := l.ProveAgain(t.Context())
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Why, "no longer does: no token") {
		t.Errorf("%+v, %v", problems, err)
	}
	n.err = errors.New("failed")
	if _, err := l.ProveAgain(t.Context()); !errors.Is(err, n.err) {
		t.Errorf("a node that does not answer: %v", err)
	}
}

// TestNothingIsChosen: where there are problems, the volumes stay as the definition has them.
func TestNothingIsChosen(t *testing.T) {
	n := &node{}
	l := newMover(t, n).Leave(engine.Definition{ID: "web", Volumes: []engine.Volume{bind("/etc")}},
		identity.Node{Name: "b"}, migration.Cold, nil)
	problems, err := l.Choose(t.Context(), "")
	if err != nil || len(problems) != 1 || l.Moving().Volumes[0].Stays || len(l.Chosen().Moved) > 0 {
		t.Errorf("%+v, %v, %+v", problems, err, l.Chosen())
	}
}

// TestHandOver: storage of both nodes is handed over unless the container holds a lock there that the
// target could not take. In mode restart its locks have ended.
func TestHandOver(t *testing.T) {
	n, l := sharing(t)
	place := l.Moving().Volumes[0].Source
	l.stopped = func() bool { return false }
	if problems, err := l.HandOver(t.Context()); err != nil || len(problems) > 0 {
		t.Errorf("%+v, %v", problems, err)
	}
	file, err := os.Create(filepath.Join(place, "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	mine := &locker{node: n}
	l.mover.engines = mine
	l.stopped = func() bool { return true }
	problems, err := l.Release(t.Context())
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0].What, "db") {
		t.Errorf("with a lock: %+v, %v", problems, err)
	}
	l.mode = migration.Restart
	if problems, err := l.Release(t.Context()); err != nil || len(problems) > 0 {
		t.Errorf("in mode restart: %+v, %v", problems, err)
	}
	n.gone = engine.ErrNotFound
	l.mover.engines = n
	if _, err := l.Release(t.Context()); err != nil {
		t.Errorf("without processes: %v", err)
	}
	l.mode = migration.Cold
	if _, err := l.Release(t.Context()); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("when nobody knows who holds locks: %v", err)
	}
	l.mode, l.stopped = migration.Restart, func() bool { return false }
	if _, err := l.Release(t.Context()); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("when nobody knows the processes: %v", err)
	}
	n.noPlaces = errors.New("failed")
	l.mode = migration.Cold
	if _, err := l.HandOver(t.Context()); !errors.Is(err, n.noPlaces) {
		t.Errorf("of a volume whose place is not known: %v", err)
	}
	l.Forget(t.Context()) // which is only logged
	if err := l.mover.GiveBack(t.Context(), l.Moving()); !errors.Is(err, n.noPlaces) {
		t.Errorf("given back: %v", err)
	}
}

// TestGiveBack: another node finds what was written here.
func TestGiveBack(t *testing.T) {
	_, l := sharing(t)
	l.Forget(t.Context())
	if err := l.mover.GiveBack(t.Context(), l.Moving()); err != nil {
		t.Error(err)
	}
}

// locker is a node whose container is the test's process.
type locker struct{ *node }

func (o *locker) EngineFor(engine.Definition) engine.Engine { return o }

func (*locker) Processes(context.Context, string) ([]int, error) { return []int{os.Getpid()}, nil }
