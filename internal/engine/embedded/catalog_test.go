package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// newParts makes the parts of an engine in directories of the test. It runs no container, and needs neither
// root nor runc.
func newParts(t *testing.T) *Engine {
	t.Helper()
	dir := shortDir(t)
	e := assemble(Config{StateDir: dir + "/s", RunDir: dir + "/r", Cgroup: "/godwit-no-such-group",
		Images: testImages{t.TempDir()}, ResolvConf: dir + "/resolv.conf", State: "one", Runc: dir + "/runc",
		Executable: os.Args[0]})
	must(t, e.prepare())
	return e
}

// add adds a container that is in this state.
func (c *catalog) add(t *testing.T, name string, was record, change ...func(*engine.Definition)) container {
	t.Helper()
	d := engine.Definition{ID: newID(t), Name: name, Layers: []string{testLayer}, Args: []string{"true"}}
	for _, one := range change {
		one(&d)
	}
	place := c.paths.of(d.ID)
	must(t, os.MkdirAll(place.dir(), 0o700))
	must(t, durable.Save(place.record(), was))
	must(t, durable.Save(place.definition(), d))
	return place
}

// TestCatalog checks how containers are found, and that a damaged one does not hide the others.
func TestCatalog(t *testing.T) {
	e := newParts(t)
	b := e.catalog.add(t, "b", record{State: engine.Exited, ExitCode: 7})
	a := e.catalog.add(t, "a", record{State: engine.Created})
	damaged := e.catalog.add(t, "c", record{})
	must(t, os.WriteFile(damaged.record(), []byte("{"), 0o600))
	must(t, os.Mkdir(filepath.Join(e.paths.containers(), "no-container"), 0o700))
	all, err := e.List(t.Context())
	must(t, err)
	var found []string
	for _, ctr := range all {
		found = append(found, ctr.Definition.Name+" "+string(ctr.State))
	}
	if !slices.Equal(found, []string{"a created", "b exited", "c damaged"}) {
		t.Errorf("found %v", found)
	}
	for ref, want := range map[string]string{"a": a.id, a.id: a.id, b.id[:20]: b.id, "b": b.id} {
		if ctr, err := e.Inspect(t.Context(), ref); err != nil || ctr.Definition.ID != want {
			t.Errorf("%s: %.12s, %v", ref, ctr.Definition.ID, err)
		}
	}
	for _, ref := range []string{"", "z", "../a", newID(t)} {
		if _, err := e.Inspect(t.Context(), ref); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%q is found: %v", ref, err)
		}
	}
	if _, err := e.Inspect(t.Context(), "c"); err == nil || errors.Is(err, engine.ErrNotFound) {
		t.Errorf("a damaged container is inspected: %v", err)
	}
	if _, err := e.running(b.id); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("an exited container runs: %v", err)
	}
	if code, err := e.Wait(t.Context(), b.id); err != nil || code != 7 {
		t.Errorf("exit code %d, %v", code, err)
	}
	taken := engine.Definition{Name: "a", ID: newID(t)}
	if err := e.nameFree(t.Context(), taken); !errors.Is(err, engine.ErrNameTaken) {
		t.Errorf("a name is free: %v", err)
	}
}

// TestAmbiguousPrefix checks that a prefix of two IDs is refused.
func TestAmbiguousPrefix(t *testing.T) {
	e := newParts(t)
	for i, rest := range []string{"0", "1"} {
		e.catalog.add(t, "c"+rest, record{State: engine.Created},
			func(d *engine.Definition) { d.ID = "abc" + strings.Repeat(rest, 61) })
		if _, err := e.Inspect(t.Context(), "abc"); (err == nil) != (i == 0) {
			t.Errorf("with %d containers: %v", i+1, err)
		}
	}
}

// TestGoneWithABoot checks that a container that ran when the machine went down counts as ended, and that it
// does not run while this process is still starting it.
func TestGoneWithABoot(t *testing.T) {
	e := newParts(t)
	place := e.catalog.add(t, "a", record{State: engine.Running})
	ctr, err := e.inspect(place.id)
	if err != nil || ctr.State != engine.Exited || ctr.ExitCode != exitUnknown {
		t.Errorf("%+v, %v", ctr, err)
	}
	done := e.markStarting(place.id)
	if !e.starts(place.id) {
		t.Error("it is not being started")
	}
	if done(); e.starts(place.id) {
		t.Error("it is still being started")
	}
}

// TestInterruptedRemoval checks that the engine finishes a removal that a crash has interrupted.
func TestInterruptedRemoval(t *testing.T) {
	e := newParts(t)
	place := e.catalog.add(t, "a", record{State: engine.Created})
	doomed := filepath.Join(e.paths.containers(), removingPrefix+place.id)
	must(t, os.Rename(place.dir(), doomed))
	must(t, e.prepare())
	if durable.Exists(doomed) {
		t.Error("it is still there")
	}
}
