package embedded

import (
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/enginetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	enginetest.Run(t, fixture{})
}

type fixture struct{}

func (fixture) NewNode(t *testing.T) enginetest.Node { return newTestNode(t) }

// Define fills in id, name and image.
func (n *testNode) Define(t *testing.T, d engine.Definition) engine.Definition {
	base := definition(t)
	d.ID, d.Image, d.Layers, d.Created = base.ID, base.Image, base.Layers, base.Created
	if d.Name == "" {
		d.Name = base.Name
	}
	return d
}

// Run makes and starts a container.
func (n *testNode) Run(t *testing.T, d engine.Definition) {
	t.Helper()
	if err := n.TryRun(t, d); err != nil {
		t.Fatal(err)
	}
}

// TryRun is Run that may fail.
func (n *testNode) TryRun(t *testing.T, d engine.Definition) error {
	if err := n.Create(t.Context(), d, newNetns(t)); err != nil {
		return err
	}
	return n.Start(t.Context(), d.ID)
}

// Netns makes a network namespace.
func (n *testNode) Netns(t *testing.T) string { return newNetns(t) }

// Reopen makes a new engine on the same node.
func (n *testNode) Reopen(t *testing.T) enginetest.Node {
	e, err := New(n.config)
	if err != nil {
		t.Fatal(err)
	}
	return &testNode{e, t}
}
