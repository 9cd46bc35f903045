package lxc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// pretend puts a tool of LXC that is this script first into the path.
func pretend(t *testing.T, name, script string) {
	t.Helper()
	bin := t.TempDir()
	must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// TestTools checks what the tools' answers mean, and that an error has their message.
func TestTools(t *testing.T) {
	tools := newTools(t.TempDir())
	for _, c := range []struct {
		script string
		pid    int
		fails  string
	}{
		{script: "echo '  1234 '", pid: 1234},
		{script: "echo"},
		{script: "echo -5", fails: "want the pid of container one"},
		{script: "echo many words", fails: "want the pid of container one"},
		{script: "echo first >&2; echo last >&2; exit 1", fails: "last"},
	} {
		pretend(t, "lxc-info", c.script)
		pid, err := tools.firstProcess(t.Context(), "one", toolLimit)
		said := fmt.Sprint(err)
		if pid != c.pid || (err != nil) != (c.fails != "") || !strings.Contains(said, c.fails) ||
			strings.Contains(said, "first") {
			t.Errorf("%s: %d, %v", c.script, pid, err)
		}
	}
	first, err := tools.first(t.Context(), "one", toolLimit)
	if err == nil || first.PID != 0 {
		t.Errorf("without an answer: %+v, %v", first, err)
	}
	pretend(t, "lxc-info", "echo $PPID") // this process
	if first, err = tools.first(t.Context(), "one", toolLimit); err != nil || first.PID != os.Getpid() {
		t.Errorf("this process: %+v, %v", first, err)
	}
	pretend(t, "lxc-info", "exit 1")
	if again, err := tools.first(t.Context(), "one", toolLimit); err != nil || again != first {
		t.Errorf("remembered: %+v, %v", again, err)
	}
}

// TestRemove checks that a container is removed with LXC's tool, and its records with it.
func TestRemove(t *testing.T) {
	e := newEngine(t)
	p := addContainer(t, e, "one", ownRecord{ID: someID, Name: "one"})
	pretend(t, "lxc-destroy", "exit 1")
	if err := e.Remove(t.Context(), someID, false); err == nil || !durable.Exists(p.state) {
		t.Errorf("LXC has failed: %v", err)
	}
	pretend(t, "lxc-destroy", `[ "$1 $3 $4" = "-P -n one" ] && rm "$2/$4/config"`)
	must(t, e.Remove(t.Context(), someID, false))
	if durable.Exists(p.lxc) || durable.Exists(p.state) {
		t.Error("something is left")
	}
	if err := e.Remove(t.Context(), someID, false); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	must(t, e.Destroy(t.Context(), someID, nil))
}

// TestRemovalGoesOn checks that a removal that LXC has finished, but not this engine, is finished without
// LXC, and leaves what is not the engine's.
func TestRemovalGoesOn(t *testing.T) {
	e := newEngine(t)
	p := addContainer(t, e, "one", ownRecord{ID: someID, Name: "one"})
	must(t, os.Remove(p.config()))
	pretend(t, "lxc-destroy", "exit 1")
	foreign := filepath.Join(p.lxc, "foreign")
	must(t, os.WriteFile(foreign, nil, 0o600))
	if err := e.Destroy(t.Context(), someID, nil); err == nil || !durable.Exists(foreign) {
		t.Errorf("a file of somebody else is removed: %v", err)
	}
	must(t, os.Remove(foreign))
	must(t, durable.Save(p.own(), ownRecord{ID: someID, Name: "one"}))
	must(t, e.Destroy(t.Context(), someID, nil))
	if durable.Exists(p.lxc) || durable.Exists(p.state) {
		t.Error("something is left")
	}
}

// TestGuard checks that a container that leaves has a configuration with which LXC does not start it, and
// that its own comes back.
func TestGuard(t *testing.T) {
	e := newEngine(t)
	p := addContainer(t, e, "one", ownRecord{ID: someID, Name: "one"})
	was, err := os.ReadFile(p.config())
	must(t, err)
	for range 2 { // the second time after an agent was killed
		must(t, p.guard())
	}
	if now, err := os.ReadFile(p.config()); err != nil || string(now) == string(was) {
		t.Errorf("not changed: %v", err)
	}
	leave := engine.Leave{Migration: "one", Target: "b"}
	must(t, durable.Save(p.departure(), departureRecord{Leave: leave}))
	ctr, err := e.Inspect(t.Context(), "one")
	if err != nil || ctr.Leaving == nil || ctr.Leaving.Target != "b" || ctr.Definition.Hostname == "" {
		t.Errorf("leaving: %+v, %v", ctr, err)
	}
	if all, err := e.Leaves(); err != nil || len(all) != 1 || all[0].Migration != "one" {
		t.Errorf("%+v, %v", all, err)
	}
	must(t, e.Resume(t.Context(), someID))
	must(t, e.Resume(t.Context(), someID))
	now, err := os.ReadFile(p.config())
	if err != nil || string(now) != string(was) || durable.Exists(p.departure()) {
		t.Errorf("resumed: %q, %v", now, err)
	}
}

// TestNotForLXC checks that what LXC cannot do is refused, and that ending it is not.
func TestNotForLXC(t *testing.T) {
	e := newEngine(t)
	if _, err := e.VolumePath(engine.Volume{Name: "v"}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("volumes: %v", err)
	}
	if err := e.RemoveVolume(t.Context(), "v"); !errors.Is(err, engine.ErrNoVolume) {
		t.Errorf("a volume is removed: %v", err)
	}
	if _, err := e.Halt(t.Context(), someID, engine.Leave{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("halted: %v", err)
	}
	if halted, err := e.Halted(t.Context(), someID); halted || err != nil {
		t.Errorf("halted: %t, %v", halted, err)
	}
	if problems, err := e.ExamineAnew(t.Context(), someID); len(problems) != 1 || err != nil {
		t.Errorf("%+v, %v", problems, err)
	}
	if err := e.Throttle(t.Context(), someID, 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("throttled: %v", err)
	}
	must(t, e.Throttle(t.Context(), someID, 0))
}
