package lxc

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/patience"
)

// newEngine makes an engine on directories of the test, without LXC.
func newEngine(t *testing.T) *Engine {
	t.Helper()
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Path: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// addContainer makes a container that is not running.
func addContainer(t *testing.T, e *Engine, name string, own ownRecord) place {
	t.Helper()
	p := e.place(own.ID, name)
	err := os.MkdirAll(p.lxc, 0o700)
	if err == nil {
		err = os.WriteFile(p.config(), []byte(busybox), 0o600)
	}
	if err == nil {
		err = durable.Save(p.own(), own)
	}
	if err == nil {
		err = os.MkdirAll(p.state, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var someID = strings.Repeat("ab", 32)

// TestCopied: a copy of a container's directory is another container, and a renamed one is not.
func TestCopied(t *testing.T) {
	e := newEngine(t)
	addContainer(t, e, "copy", ownRecord{ID: someID, Name: "one"})
	if p, err := e.find(someID); err != nil || p.name != "copy" {
		t.Errorf("renamed: found %q, %v", p.name, err)
	}
	addContainer(t, e, "one", ownRecord{ID: someID, Name: "one"})
	if p, err := e.find(someID); err != nil || p.name != "one" {
		t.Errorf("copied: found %q, %v", p.name, err)
	}
	if _, err := e.identityOf("copy", false); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("a copy that does not run has an identity: %v", err)
	}
	if id, err := e.identityOf("copy", true); err != nil || id == someID {
		t.Errorf("a copy that runs has the identity %s, %v", id, err)
	}
	if id, err := e.identityOf("one", true); err != nil || id != someID {
		t.Errorf("the original has the identity %s, %v", id, err)
	}
}

// TestUnreadable: a container with an unreadable record does not count as missing.
func TestUnreadable(t *testing.T) {
	e := newEngine(t)
	p := addContainer(t, e, "one", ownRecord{ID: someID, Name: "one"})
	if err := os.WriteFile(p.own(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := durable.Save(p.departure(), departureRecord{}); err != nil {
		t.Fatal(err)
	}
	_, inspected := e.Inspect(t.Context(), someID)
	_, arrived := e.Arrived(t.Context(), someID)
	for what, err := range map[string]error{
		"inspect": inspected, "arrived": arrived,
		"thaw": e.Resume(t.Context(), someID), "destroy": e.Destroy(t.Context(), someID, nil),
	} {
		if err == nil || errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestPathGone: a missing directory of all containers is an error, and not an empty list.
func TestPathGone(t *testing.T) {
	unmounted := filepath.Join(t.TempDir(), "unmounted")
	e := assemble(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Path: unmounted})
	if all, err := e.List(t.Context()); !errors.Is(err, engine.ErrAway) {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestDamagedConfig: a container whose configuration cannot be read is an error: nothing is known of its
// processes.
func TestDamagedConfig(t *testing.T) {
	e := newEngine(t)
	p := addContainer(t, e, "one", ownRecord{ID: someID, Name: "one"})
	if err := os.WriteFile(p.config(), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := e.List(t.Context()); err != nil || len(all) != 1 || all[0].State != engine.Damaged {
		t.Errorf("listed: %+v, %v", all, err)
	}
	if ctr, err := e.Inspect(t.Context(), someID); err == nil {
		t.Errorf("inspected: %+v", ctr)
	}
}

// TestMissingConfig: a stopped container whose configuration is temporarily elsewhere still exists, and so
// keeps its address. An arriving container does not exist yet.
func TestMissingConfig(t *testing.T) {
	e := newEngine(t)
	p := addContainer(t, e, "one", ownRecord{ID: someID, Name: "one"})
	if err := os.Remove(p.config()); err != nil {
		t.Fatal(err)
	}
	all, err := e.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Definition.ID != someID || all[0].State != engine.Damaged {
		t.Errorf("listed: %+v, %v", all, err)
	}
	for _, ref := range []string{someID, "one"} {
		if ctr, err := e.Inspect(t.Context(), ref); err == nil || errors.Is(err, engine.ErrNotFound) ||
			!strings.Contains(err.Error(), p.config()) {
			t.Errorf("inspected: %+v, %v", ctr, err)
		}
	}
	if err := durable.Save(p.arrival(), struct{}{}); err != nil {
		t.Fatal(err)
	}
	if all, err := e.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("one that comes: %+v, %v", all, err)
	}
}

// TestResumeGivesBack: Resume restores a container's own configuration, even if its process has ended, and
// even if an agent was killed while it put the configuration aside.
func TestResumeGivesBack(t *testing.T) {
	e := newEngine(t)
	p := addContainer(t, e, "one", ownRecord{ID: someID, Name: "one"})
	command := exec.CommandContext(context.WithoutCancel(t.Context()), "true")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	first, err := checkpoint.Identify(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // its exit code does not matter
	if err := durable.Save(p.departure(), departureRecord{Started: time.Now(), First: first}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.aside(), []byte(busybox), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.guard(); err != nil {
		t.Fatal(err)
	}
	guarded, err := readConfig(p.config())
	if err != nil || !strings.Contains(guarded, "lxc.hook.pre-start = /bin/false") {
		t.Errorf(
			"an agent was killed after it had put the configuration aside, and it is not guarded: %v\n%s",
			err, guarded)
	}
	if err := e.Resume(t.Context(), someID); err != nil {
		t.Fatal(err)
	}
	if text, err := readConfig(p.config()); err != nil || text != busybox {
		t.Errorf("configuration: %v\n%s", err, text)
	}
	if durable.Exists(p.aside()) || durable.Exists(p.departure()) {
		t.Error("something of the departure is left")
	}
}

// TestLargeRecord: the record of the largest configuration is read as it was written.
func TestLargeRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "arrival.json")
	was := arrivalRecord{Name: "one", Config: strings.Repeat("\x01", maxConfig)}
	if err := durable.Save(path, was); err != nil {
		t.Fatal(err)
	}
	var now arrivalRecord
	if err := durable.Load(path, &now); err != nil || now != was {
		t.Errorf("%d bytes, %v", len(now.Config), err)
	}
}

// TestLXCGone: nothing is restored if LXC no longer waits for it.
func TestLXCGone(t *testing.T) {
	e := newEngine(t)
	ended := make(chan struct{})
	close(ended)
	for what, settled := range map[string]chan struct{}{"lxc-checkpoint": ended,
		"monitor": make(chan struct{})} {
		a := &arrival{arrivals: e.arrivals, definition: definition(busybox), place: e.place(someID, "one"),
			settled: settled}
		if _, err := a.Restore(t.Context(), engine.Permission{Ask: func() error { return nil }}); err == nil {
			t.Errorf("%s has ended: no error", what)
		}
	}
}

// TestAnothers: processes of a container that LXC keeps in another directory are left alone.
func TestAnothers(t *testing.T) {
	p := newEngine(t).place(someID, "one")
	for title, want := range map[string]bool{
		"[lxc monitor] /elsewhere one": true, "[lxc monitor] " + filepath.Dir(p.lxc) + " one": false,
		"sleep": false,
	} {
		monitor := exec.CommandContext(t.Context(), "sleep", "1000")
		monitor.Args[0] = title
		if err := monitor.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = monitor.Wait() }) // the test's context has ended it
		if got := p.isAnothers(monitor.Process.Pid); got != want {
			t.Errorf("%s: %t", title, got)
		}
	}
}

// TestStuckTool: a container for which LXC does not answer does not hide the others in the list.
func TestStuckTool(t *testing.T) {
	e, bin := newEngine(t), t.TempDir()
	e.listed = patience.Limit{Still: 100 * time.Millisecond, Most: time.Minute}
	must(t, os.WriteFile(filepath.Join(bin, "lxc-info"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for name, id := range map[string]string{"stuck": someID, "well": strings.Repeat("cd", 32)} {
		addContainer(t, e, name, ownRecord{ID: id, Name: name})
		monitor, err := net.Listen("unix", "@"+e.tools.path+"/"+name+"/command")
		must(t, err)
		defer monitor.Close()
	}
	self, err := checkpoint.Identify(os.Getpid())
	must(t, err)
	e.firsts["well"] = self // LXC is not asked again
	all, err := e.List(t.Context())
	if err != nil || len(all) != 2 || all[0].State != engine.Damaged || all[1].State != engine.Running {
		t.Errorf("%+v, %v", all, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
