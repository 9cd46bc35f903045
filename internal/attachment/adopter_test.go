package attachment

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/inventory"
)

// TestFollowEngine: a container that runs is adopted, and one that has ended is let go. One that is being
// moved, or whose connection is its engine's, is left alone.
func TestFollowEngine(t *testing.T) {
	n := newNode(t)
	n.moves.moving[idOf("m")] = true
	pid := os.Getpid()
	n.other.has = []engine.Container{
		pooled("a", engine.Running, pid), pooled("e", engine.Exited, 0), pooled("f", engine.Frozen, pid),
		pooled("m", engine.Running, pid), onBridge("b", engine.Running, "172.30.0.2"),
	}
	n.adopter.all(t.Context(), inventory.Told{})
	expect(t, "looked at", n.network.called(), "adopt a 10.88.1.2 mtu 1400", "detach e")
	if noted := n.adopter.notes.list(); len(noted) != 1 || noted[0].Container != idOf("a") {
		t.Errorf("noted: %+v", noted)
	}
	if len(n.cluster.released) != 1 {
		t.Errorf("where it was before is forgotten: %v", n.cluster.released)
	}
	n.adopter.Drop(idOf("a"))
	if noted := n.adopter.notes.list(); len(noted) > 0 {
		t.Errorf("it has left: %+v", noted)
	}
	n.other.down = errDown
	n.adopter.all(t.Context(), inventory.Told{})
	expect(t, "its engine does not answer", n.network.called())
}

// TestEndIsAwaited: a container that has ended is let go as soon as its first process ends, and nothing moves
// it. One that was started anew keeps its connection.
func TestEndIsAwaited(t *testing.T) {
	n := newNode(t)
	start := func() (*exec.Cmd, engine.Container) {
		t.Helper()
		sleeps := exec.CommandContext(t.Context(), "sleep", "600")
		if err := sleeps.Start(); err != nil {
			t.Fatal(err)
		}
		return sleeps, pooled("a", engine.Running, sleeps.Process.Pid)
	}
	end := func(one *exec.Cmd) {
		_ = one.Process.Kill()
		_ = one.Wait()
		await.True(t, "its end was seen", func() bool {
			n.adopter.mu.Lock()
			defer n.adopter.mu.Unlock()
			return len(n.adopter.first) == 0
		})
	}
	first, one := start()
	n.other.has = []engine.Container{one}
	for range 2 { // it is awaited once
		if err := n.adopter.adopt(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	n.network.called()
	end(first)
	var calls []string
	await.True(t, "it was let go", func() bool {
		calls = append(calls, n.network.called()...)
		return len(calls) > 0
	})
	expect(t, "it has ended", calls, "detach a")

	second, _ := start()
	defer func() { _ = second.Process.Kill() }()
	n.other.has[0].PID = second.Process.Pid
	if n.adopter.endedHere(one) {
		t.Error("it was started anew")
	}
	n.other.down = errDown
	if n.adopter.endedHere(one) {
		t.Error("its engine does not answer")
	}
}

// TestConnected: before a container leaves, its connection is ours.
func TestConnected(t *testing.T) {
	n := newNode(t)
	one := pooled("a", engine.Running, os.Getpid())
	n.other.has = []engine.Container{one}
	now, err := n.adopter.Connected(t.Context(), one)
	if err != nil || now.Definition.ID != one.Definition.ID {
		t.Errorf("%+v, %v", now, err)
	}
	expect(t, "it runs", n.network.called(), "adopt a 10.88.1.2 mtu 1400")
	for what, one := range map[string]engine.Container{
		"it has ended": pooled("a", engine.Exited, 0),
		"on a bridge":  onBridge("a", engine.Running, "172.30.0.2"),
	} {
		if _, err := n.adopter.Connected(t.Context(), one); err != nil {
			t.Error(err)
		}
		expect(t, what, n.network.called())
	}
	n.network.fails = errDown
	if _, err := n.adopter.Connected(t.Context(), one); !errors.Is(err, errDown) {
		t.Errorf("%v: it is not connected", err)
	}
}

// TestForgetRemoved: what a container had that was removed by its engine's tools goes back to whose it is.
func TestForgetRemoved(t *testing.T) {
	n := newNode(t)
	home, away := pooled("a", engine.Running, 0), pooled("b", engine.Running, 0)
	away.Definition.Network.Address = n.abroad()
	for _, one := range []engine.Container{home, away} {
		n.adopter.notes.note(adoption{Container: one.Definition.ID, Engine: "docker",
			Address: one.Definition.Network.Address})
	}
	for _, one := range n.adopter.notes.list() {
		if err := n.adopter.forgetAdopted(one); err != nil {
			t.Error(err)
		}
	}
	expect(t, "given back", n.network.called(), "detach a", "release a", "detach b")
	expect(t, "at its home", n.cluster.gaveBack, idOf("b"))
	expect(t, "told", n.removed, idOf("a"), idOf("b"))
	if noted := n.adopter.notes.list(); len(noted) > 0 {
		t.Errorf("still noted: %+v", noted)
	}
	n.adopter.notes.note(adoption{Container: idOf("a"), Address: home.Definition.Network.Address})
	n.network.fails = errDown
	err := n.adopter.forgetAdopted(n.adopter.notes.list()[0])
	if !errors.Is(err, errDown) || len(n.adopter.notes.list()) != 1 {
		t.Errorf("%v: it is tried again", err)
	}
}

// TestRemovedByItsEngine: a container is taken for removed if its engine has answered for some time
// and has it no more, its first process is dead, and nothing moves it; one that an earlier agent
// has noted, too.
func TestRemovedByItsEngine(t *testing.T) {
	n := newNode(t)
	path := filepath.Join(t.TempDir(), "adoptions.json")
	n.again(t, path)
	note := func(id, engine string, first checkpoint.Identity) adoption {
		one := adoption{Container: id, Engine: engine, Address: n.abroad(), First: first}
		n.adopter.notes.note(one)
		return one
	}
	self, err := checkpoint.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	here, gone := note(idOf("a"), "docker", checkpoint.Identity{}),
		note(idOf("b"), "docker", checkpoint.Identity{})
	note(idOf("c"), "lxc", checkpoint.Identity{}) // is not there to tell
	note(idOf("d"), "docker", self)               // runs
	if err := n.adopter.notes.save(); err != nil {
		t.Fatal(err)
	}
	n.other.has = []engine.Container{{Definition: engine.Definition{
		EngineName: "docker", ID: here.Container,
	}}}
	n.again(t, path)
	now := time.Now()
	look := func(what string, after time.Duration, want ...adoption) {
		t.Helper()
		now = now.Add(after)
		if found := n.adopter.removed(t.Context(), now); !slices.Equal(found, want) {
			t.Errorf("%s: %+v", what, found)
		}
	}
	look("first look", 0)
	look("at once", time.Millisecond)
	look("no more", missingFor, gone)
	n.other.down = errDown
	look("its engine does not answer", missingFor)
	n.other.down = nil
	look("answers again", missingFor)
	n.moves.moving[gone.Container] = true
	look("it is moved", missingFor)
	n.moves.moving[gone.Container] = false
	look("moved no more", missingFor)
	look("no more after all", missingFor, gone)
	n.adopter.Drop(gone.Container)
	look("it has left", missingFor)
}

// TestAddressLeavesToo: what was noted of a container that runs elsewhere gives nothing back.
func TestAddressLeavesToo(t *testing.T) {
	for what, leave := range map[string]func(n *node){
		"it has left": func(n *node) { n.moves.left[idOf("a")] = true },
		"told of":     func(n *node) { n.cluster.elsewhere = []string{idOf("a")} },
	} {
		n := newNode(t)
		one := adoption{Container: idOf("a"), Engine: "docker", Address: n.abroad()}
		n.adopter.notes.note(one)
		leave(n)
		if err := n.adopter.forgetAdopted(one); err != nil || len(n.adopter.notes.list()) != 0 {
			t.Errorf("%s: %v, %v", what, err, n.adopter.notes.list())
		}
		expect(t, what, append(n.network.called(), n.cluster.gaveBack...))
	}
}

// TestNotedOnlyIfHere: a container that its engine has no more when it is noted, or with another
// process, is not.
func TestNotedOnlyIfHere(t *testing.T) {
	n := newNode(t)
	n.other.has = []engine.Container{pooled("a", engine.Running, 1)}
	for _, letter := range []string{"a", "b"} {
		n.adopter.noteAdopted(t.Context(), pooled(letter, engine.Running, os.Getpid()))
	}
	if noted := n.adopter.notes.list(); len(noted) != 0 {
		t.Errorf("%+v", noted)
	}
}
