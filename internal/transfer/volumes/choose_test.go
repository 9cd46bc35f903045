package volumes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/proof"
	"github.com/godwit/godwit/internal/wire/identity"
)

// node is an engine with its containers, and what was proven of volumes by their keys.
type node struct {
	engine.Engine
	has      []engine.Container
	trees    []files.Tree
	places   map[string]string // of volumes; a volume without one is at its source
	proofs   map[string]proof.Proof
	asked    []string
	err      error // of Prove
	lists    error
	noPlaces error
	gone     error // of Processes and Trees
}

func (n *node) List(context.Context) ([]engine.Container, error) { return n.has, n.lists }

func (n *node) EngineFor(engine.Definition) engine.Engine { return n }

func (n *node) VolumePath(v engine.Volume) (string, error) {
	if place, has := n.places[v.Key()]; has {
		return place, n.noPlaces
	}
	return v.Source, n.noPlaces
}

func (n *node) Processes(context.Context, string) ([]int, error) { return nil, n.gone }

func (n *node) Trees(context.Context, string) ([]files.Tree, error) {
	return slices.Clone(n.trees), n.gone
}

func (n *node) Prove(_ context.Context, _ identity.Node, volumes []engine.Volume) ([]proof.Proof, error) {
	var found []proof.Proof
	for _, v := range volumes {
		n.asked = append(n.asked, v.Key())
		found = append(found, n.proofs[v.Key()])
	}
	return found, n.err
}

func newMover(t *testing.T, n *node) *Mover {
	t.Helper()
	return New(Machine{Name: "a", StateDir: t.TempDir(), RunDir: t.TempDir()}, n, n,
		slog.New(slog.DiscardHandler))
}

func TestCheckWays(t *testing.T) {
	has := engine.Definition{Name: "web", Volumes: []engine.Volume{{Name: "data", Path: "/data"},
		{Kind: engine.Tmpfs, Path: "/t"}}}
	for _, one := range []struct {
		definition engine.Definition
		ways       migration.VolumeWays
		want       string // "": it is allowed
	}{
		{has, "", ""}, {has, "move", ""}, {has, "data=skip", ""}, {has, "/data=shared", ""},
		{has, "/t=skip", ""},
		{has, "/t=shared", "is memory of the container"},
		{has, "none=skip", "it has: data, /t"},
		{engine.Definition{Name: "web"}, "data=skip", "has no volumes"},
	} {
		err := CheckWays(one.definition, one.ways)
		if one.want == "" && err != nil ||
			one.want != "" && (!errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), one.want)) {
			t.Errorf("%q: %v, want %q", one.ways, err, one.want)
		}
	}
}

// TestChoose: what a user chose is done, but that what both nodes mount stays.
func TestChoose(t *testing.T) {
	data, host := t.TempDir(), t.TempDir()
	named := engine.Volume{Name: "data", Path: "/data"}
	memory := engine.Volume{Kind: engine.Tmpfs, Path: "/t"}
	reads := engine.Volume{Kind: engine.Bind, Source: host, Path: "/r", ReadOnly: true}
	others := []engine.Container{{Definition: engine.Definition{ID: "other", Name: "db",
		Volumes: []engine.Volume{named}}}}
	for _, one := range []struct {
		name    string
		volume  engine.Volume
		mode    migration.Mode
		ways    migration.VolumeWays
		engine  string
		found   proof.Proof
		has     []engine.Container
		way     migration.VolumeWay
		why     string
		problem string
		asked   bool
	}{
		{name: "moves", volume: named, way: migration.VolumeMove, asked: true},
		{name: "is skipped", volume: named, ways: "skip", way: migration.VolumeSkip},
		{name: "is shared by proof", volume: named, found: proof.Proof{Shared: true, Same: true},
			way: migration.VolumeShared, why: "both nodes mount it", asked: true},
		{name: "is not shared", volume: named, ways: "shared", found: proof.Proof{Why: "no token"},
			way: migration.VolumeShared, problem: "could not be proven: no token", asked: true},
		{name: "cannot be asked", volume: named, found: proof.Proof{Unsure: true, Why: "read-only"},
			way: migration.VolumeMove, problem: "cannot find out", asked: true},
		{name: "is copied there", volume: named, found: proof.Proof{OneWay: true, Why: "a mirror"},
			way: migration.VolumeMove, problem: "has the same data there", asked: true},
		{name: "is another's, too", volume: named, has: others, way: migration.VolumeMove,
			problem: "container db on this node also uses it", asked: true},
		{name: "memory", volume: memory, way: migration.VolumeMove},
		{name: "memory in mode restart", volume: memory, mode: migration.Restart, way: migration.VolumeSkip,
			why: "ends with the stopped processes"},
		{name: "memory cannot be shared", volume: memory, ways: "shared", way: migration.VolumeMove},
		{name: "read-only directory", volume: reads, way: migration.VolumeMove, why: "can only read it",
			asked: true},
		{name: "directory", volume: bind(host), way: migration.VolumeMove, why: "removed from a",
			asked: true},
		{name: "read-only directory of another engine", volume: reads, engine: "docker",
			way: migration.VolumeSkip, why: "will read what exists on b"},
		{name: "part of the machine", volume: bind("/etc"), way: migration.VolumeMove,
			why: "removed from a", problem: "belongs to this machine"},
		{name: "with a file system in it", volume: engine.Volume{Name: "root", Path: "/root"},
			way: migration.VolumeMove, problem: "another file system is mounted in it", asked: true},
	} {
		t.Run(one.name, func(t *testing.T) {
			n := &node{has: one.has, places: map[string]string{"data": data, "root": "/"},
				proofs: map[string]proof.Proof{one.volume.Key(): one.found}}
			definition := engine.Definition{ID: "web", Name: "web", EngineName: one.engine,
				Volumes: []engine.Volume{one.volume}}
			to := identity.Node{Name: "b"}
			c, err := newMover(t, n).Choose(t.Context(), one.mode, definition, to, one.ways)
			if err != nil {
				t.Fatal(err)
			}
			if moved := c.Moved[0]; moved.Way != one.way || (one.why == "") != (moved.Why == "") ||
				!strings.Contains(moved.Why, one.why) {
				t.Errorf("%+v, want %s, %q", moved, one.way, one.why)
			}
			if one.problem == "" && len(c.Problems) > 0 || one.problem != "" &&
				(len(c.Problems) != 1 || !strings.Contains(c.Problems[0].Why, one.problem)) {
				t.Errorf("problems %+v, want %q", c.Problems, one.problem)
			}
			refused := one.problem != "" && one.found == (proof.Proof{})
			if stays := one.way != migration.VolumeMove || refused; c.Volumes[0].Stays != stays {
				t.Errorf("it stays: %v", c.Volumes[0].Stays)
			}
			if asked := len(n.asked) > 0; asked != one.asked {
				t.Errorf("asked for a proof: %v", asked)
			}
			if c.Same[0] != one.found.Same || definition.Volumes[0].Stays {
				t.Errorf("%+v, and the definition has %+v", c, definition.Volumes)
			}
		})
	}
}

// TestChoosingFails: what cannot be found out is no decision.
func TestChoosingFails(t *testing.T) {
	failed := errors.New("failed")
	definition := engine.Definition{ID: "web", Volumes: []engine.Volume{{Name: "data", Path: "/data"}}}
	for what, n := range map[string]*node{
		"proof": {err: failed}, "list": {lists: failed}, "place": {noPlaces: failed},
	} {
		_, err := newMover(t, n).Choose(t.Context(), migration.Cold, definition, identity.Node{}, "")
		if !errors.Is(err, failed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
