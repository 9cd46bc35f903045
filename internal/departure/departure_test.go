package departure

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/policy"
	"github.com/godwit/godwit/internal/wire/identity"
)

var errFailed = errors.New("failed")

// node is node a, which knows node b, and has one container.
type node struct {
	container engine.Container
	busy      error
	waited    bool
}

func (n *node) Idle(context.Context, string) (engine.Container, error) { return n.container, n.busy }

func (n *node) AwaitOver(context.Context, string) error {
	n.waited = true
	return n.busy
}

func (n *node) Find(name string) (identity.Node, error) {
	if name != "a" && name != "b" {
		return identity.Node{}, engine.ErrNotFound
	}
	return identity.Node{Name: name}, nil
}

func (n *node) Protocol(string) (int, error)                   { return 1, nil }
func (n *node) RefusedBy(string) []migration.Mode              { return []migration.Mode{migration.Cold} }
func (n *node) Client(identity.Node) (*grpc.ClientConn, error) { return nil, errFailed }

func newDepartures(n *node) *Departures {
	return New(Config{
		Node: "a", Containers: n, Peers: n, Rules: admission.Rules{Node: "a", Policy: policy.Policy{}},
		Connected: func(_ context.Context, of engine.Container) (engine.Container, error) { return of, nil },
	})
}

// TestSpecify refuses what makes no sense, and finds what is meant otherwise.
func TestSpecify(t *testing.T) {
	running := engine.Container{State: engine.Running, Definition: engine.Definition{
		ID: strings.Repeat("a", 64), Name: "web",
	}}
	for name, c := range map[string]struct {
		change func(*node, *api.MigrateRequest)
		want   error
	}{
		"mode": {func(_ *node, r *api.MigrateRequest) { r.Mode = "teleport" }, api.ErrInvalid},
		"settings": {func(_ *node, r *api.MigrateRequest) { r.DowntimeTargetSeconds = -1 },
			api.ErrInvalid},
		"to itself": {func(_ *node, r *api.MigrateRequest) { r.Node = "a" }, api.ErrRefused},
		"no node":   {func(_ *node, r *api.MigrateRequest) { r.Node = "c" }, engine.ErrNotFound},
		"volumes": {func(_ *node, r *api.MigrateRequest) { r.Volumes = []string{"none=copy"} },
			api.ErrInvalid},
		"moves": {func(n *node, _ *api.MigrateRequest) { n.busy = engine.ErrBusy }, engine.ErrBusy},
		"has ended": {func(n *node, _ *api.MigrateRequest) { n.container.State = engine.Exited },
			engine.ErrNotRunning},
		"is possible": {func(*node, *api.MigrateRequest) {}, nil},
	} {
		n := &node{container: running}
		request := &api.MigrateRequest{Container: "web", Node: "b", Mode: "cold"}
		c.change(n, request)
		spec, definition, at, err := newDepartures(n).Specify(t.Context(), request)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err == nil && (spec.Source != "a" || spec.Target != "b" || at.Name != "b" ||
			definition.Name != "web" || migration.CheckID(spec.ID) != nil) {
			t.Errorf("%s: %+v to %+v", name, spec, at)
		}
	}
	n := &node{container: running}
	request := &api.MigrateRequest{
		Container: "web", Node: "b", Mode: "cold", Wait: true, Migration: "0123456789abcdef",
	}
	if spec, _, _, err := newDepartures(n).Specify(t.Context(), request); err != nil || !n.waited ||
		spec.ID != request.Migration {
		t.Errorf("%+v, %v, waited: %t", spec, err, n.waited)
	}
}

// TestRefusedModes: what the other node refuses is refused here.
func TestRefusedModes(t *testing.T) {
	refused := newDepartures(&node{}).RefusedModes("b")
	if len(refused) != 1 || refused[migration.Cold] == "" {
		t.Errorf("%v", refused)
	}
}

func TestLayerBytes(t *testing.T) {
	layers := []*api.Layer{{DiffId: "one", StoredBytes: 1}, {DiffId: "two", StoredBytes: 2}}
	if got := layerBytes(layers, []string{"two", "three"}); got != 2 {
		t.Errorf("%d bytes", got)
	}
}
