package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// TestDepartureNotes checks that a note is in both places, is the container's reason to leave, and goes from
// both.
func TestDepartureNotes(t *testing.T) {
	e := newParts(t)
	place := e.catalog.add(t, "a", record{State: engine.Exited})
	must(t, os.MkdirAll(place.runDir(), 0o700))
	must(t, e.noteDeparture(place, leaveAs("one", "b")))
	if !durable.Exists(place.departure()) || !durable.Exists(place.oldDeparture()) || !leaves(place) {
		t.Error("the note is not in both places")
	}
	all, err := e.Leaves()
	if err != nil || len(all) != 1 || all[0].Migration != "one" {
		t.Errorf("%+v, %v", all, err)
	}
	must(t, os.Remove(place.oldDeparture()))
	if ctr, err := e.inspect(place.id); err != nil || ctr.Leaving == nil || ctr.Leaving.Target != "b" {
		t.Errorf("after a boot: %+v, %v", ctr.Leaving, err)
	}
	must(t, forgetDeparture(place))
	must(t, forgetDeparture(place))
	if leaves(place) {
		t.Error("it still leaves")
	}
}

// TestStopNotRecorded checks that a stop that cannot be recorded is remembered, and recorded later.
func TestStopNotRecorded(t *testing.T) {
	e := newParts(t)
	place := e.catalog.add(t, "a", record{State: engine.Exited})
	must(t, os.MkdirAll(filepath.Join(place.restarts(), "in-the-way"), 0o700))
	if err := e.noteStopped(place); err == nil {
		t.Fatal("it is recorded")
	}
	if !e.hasStopped(place.id) || e.KeepNotes() == nil {
		t.Error("it is forgotten")
	}
	must(t, os.RemoveAll(place.restarts()))
	must(t, e.KeepNotes())
	if was, err := loadRestarts(place); err != nil || was.Stopped == "" || e.hasStopped(place.id) {
		t.Errorf("%+v, %v", was, err)
	}
	must(t, e.noteStart(place, restartRecord{Holder: "one"}))
	if was, err := loadRestarts(place); err != nil || was.Stopped != "" || was.Holder != "one" {
		t.Errorf("after a start: %+v, %v", was, err)
	}
}

// TestPolicies checks which containers have a policy, and when one is due.
func TestPolicies(t *testing.T) {
	e := newParts(t)
	always := func(d *engine.Definition) { d.Restart = "always" }
	place := e.catalog.add(t, "a", record{State: engine.Exited}, always)
	e.catalog.add(t, "b", record{State: engine.Exited})
	for range 2 { // the second time from memory
		if all, err := e.Restartable(); err != nil || len(all) != 1 || all[0] != place.id {
			t.Errorf("%v, %v", all, err)
		}
	}
	stands := func(due, unheld bool, why string) {
		t.Helper()
		ctr, err := e.inspect(place.id)
		must(t, err)
		got, err := e.Standing(ctr)
		if err != nil || got.Due != due || got.Unheld != unheld || !strings.Contains(got.Why, why) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	stands(false, true, "no record that it may start it")
	must(t, e.Settled(t.Context(), place.id))
	stands(true, false, "")
	must(t, os.WriteFile(place.restarts(), []byte("{"), 0o600))
	stands(false, true, "cannot be read")
	must(t, os.Remove(place.restarts()))
	must(t, e.Settled(t.Context(), newID(t))) // removed since
}

// TestMadeByArrival checks that an arrival that never ran leaves the directories of volumes as they were, and
// those of other containers alone.
func TestMadeByArrival(t *testing.T) {
	e := newParts(t)
	host := t.TempDir()
	empty, missing := filepath.Join(host, "empty"), filepath.Join(host, "above", "missing")
	must(t, os.Mkdir(empty, 0o750))
	d := engine.Definition{ID: newID(t), Volumes: []engine.Volume{
		{Name: "named", Path: "/n"}, {Kind: engine.Bind, Source: empty, Path: "/e"},
		{Kind: engine.Bind, Source: missing, Path: "/m"}, {Kind: engine.Tmpfs, Path: "/t"},
	}}
	was := e.arrivalRecord(d, "")
	if len(was.Made) != 3 {
		t.Fatalf("%+v", was.Made)
	}
	must(t, makeArriving(was.Made))
	for _, made := range was.Made {
		must(t, os.WriteFile(filepath.Join(made.Path, "file"), nil, 0o600))
	}
	other := e.catalog.add(t, "other", record{State: engine.Exited}, func(d *engine.Definition) {
		d.Volumes = []engine.Volume{{Name: "named", Path: "/n"}}
	})
	must(t, e.unmakeVolumes(t.Context(), d.ID, was.Made))
	entries, err := os.ReadDir(empty)
	if info, statErr := os.Stat(empty); err != nil || len(entries) > 0 || statErr != nil ||
		info.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v, %v", entries, err, statErr)
	}
	if durable.Exists(filepath.Dir(missing)) || !durable.Exists(e.paths.volume("named")+"/file") {
		t.Error("the missing directory is left, or the other container's volume is gone")
	}
	if err := e.RemoveVolume(t.Context(), "named"); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("a volume in use is removed: %v", err)
	}
	must(t, removeFiles(other, nil))
	must(t, e.RemoveVolume(t.Context(), "named"))
	if err := e.RemoveVolume(t.Context(), "named"); !errors.Is(err, engine.ErrNoVolume) {
		t.Errorf("removed twice: %v", err)
	}
}

// TestBundle checks the files that a container gets.
func TestBundle(t *testing.T) {
	e := newParts(t)
	files := e.processes.bundles
	const resolv = "nameserver 127.0.0.53\nnameserver 192.0.2.1\nsearch x\n"
	must(t, os.WriteFile(files.resolv, []byte(resolv), 0o600))
	place := e.catalog.add(t, "a", record{State: engine.Created})
	d := engine.Definition{ID: place.id, Name: "a", Hostname: "host"}
	must(t, files.makeFiles(d))
	must(t, files.makePrivate(d))
	for name, want := range map[string]string{
		"resolv.conf": "nameserver 192.0.2.1\nsearch x\n", "hostname": "host\n",
	} {
		if got, err := os.ReadFile(filepath.Join(place.private(), name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	must(t, checkPrivate(place))
	must(t, os.Remove(filepath.Join(place.private(), "hosts")))
	if err := checkPrivate(place); err == nil {
		t.Error("hosts is missing, and nobody says so")
	}
	d.Layers = []string{"sha256:unknown"}
	if err := files.mountRoot(d); err == nil {
		t.Error("a layer that is not there is mounted")
	}
	must(t, removeFiles(place, nil))
	must(t, removeFiles(place, nil))
	if durable.Exists(place.dir()) {
		t.Error("it is still there")
	}
}
