package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
)

// opener is a node whose container is the test's process.
type opener struct {
	*node
	opens func() // when the processes are asked for; nil: nothing
}

func (o *opener) EngineFor(engine.Definition) engine.Engine { return o }

func (o *opener) Processes(context.Context, string) ([]int, error) {
	if o.opens != nil {
		o.opens()
	}
	return []int{os.Getpid()}, o.gone
}

// TestExamineInodes: an open database stands against a move unless the inode stays.
func TestExamineInodes(t *testing.T) {
	here := &opener{node: &node{}}
	m := newMover(t, here.node)
	m.engines = here
	definition := engine.Definition{ID: "one"}
	dir, err := os.MkdirTemp("/dev/shm", "inodes-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "db")
	if err := os.WriteFile(path, []byte("SQLite format 3\x00 and pages"), 0o600); err != nil {
		t.Fatal(err)
	}
	volume := []engine.Volume{{Kind: engine.Bind, Source: dir, Path: "/dev/shm"}}
	examine := func(chosen Chosen) []engine.Problem {
		t.Helper()
		found, err := m.ExamineInodes(t.Context(), definition, chosen)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := examine(Chosen{}); len(found) > 0 {
		t.Errorf("before it is opened: %+v", found)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for what, chosen := range map[string]Chosen{
		"without volumes": {}, "on a volume that moves": {Volumes: volume, Same: []bool{false}},
	} {
		found := examine(chosen)
		if len(found) != 1 || !strings.HasSuffix(found[0].What, ": SQLite database "+path) {
			t.Errorf("%s: %+v", what, found)
			continue
		}
		for _, way := range []string{"--new-inodes", "both nodes see the same inodes"} {
			if !strings.Contains(found[0].Remedy, way) {
				t.Errorf("%s: the remedy is %q, want %q in it", what, found[0].Remedy, way)
			}
		}
	}
	same := Chosen{Volumes: volume, Same: []bool{true}}
	if found := examine(same); len(found) > 0 {
		t.Errorf("on storage where it keeps its inode: %+v", found)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	here.opens = func() { cancel(enough) }
	if _, err := m.ExamineInodes(ctx, definition, Chosen{}); !errors.Is(err, enough) {
		t.Errorf("when nobody wants to know any more: %v", err)
	}
	here.gone = engine.ErrNotFound
	if _, err := m.ExamineInodes(t.Context(), definition, Chosen{}); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("of a container that is gone: %v", err)
	}
}
