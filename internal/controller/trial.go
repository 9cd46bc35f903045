package controller

import (
	"context"
	"log/slog"
	"maps"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/decide"
	"github.com/godwit/godwit/internal/controller/executor"
	"github.com/godwit/godwit/internal/controller/store"
)

// Trial is a cluster in memory whose decisions can be measured. It has neither agents nor users.
type Trial struct{ cluster *cluster }

// NewTrial makes a cluster of connected nodes, which obeys containers' labels.
func NewTrial(ctx context.Context, nodes map[string]*api.NodeState) (*Trial, error) {
	kept := store.NewMemory()
	term, err := kept.Campaign(ctx, "trial")
	if err != nil {
		return nil, err
	}
	config := Config{Store: kept, Limits: executor.DefaultLimits(), Enforce: true,
		Log: slog.New(slog.DiscardHandler)}
	c, err := openCluster(ctx, config, defaultBounds(), term)
	if err != nil {
		return nil, err
	}
	for name, state := range nodes {
		live := &liveNode{session: &session{}, since: c.now()}
		live.take(state)
		live.count(c.places)
		c.live[name], c.state.Nodes[name] = live, store.Node{Name: name, State: store.Active}
	}
	return &Trial{c}, nil
}

// SetState changes what is wanted of a node.
func (t *Trial) SetState(name string, state store.NodeState) {
	node := t.cluster.state.Nodes[name]
	node.State, node.Drain = state, nil
	if state == store.Draining {
		node.Drain = &store.Drain{By: "trial", Since: t.cluster.now()}
	}
	t.cluster.state.Nodes[name] = node
}

// SetLabels replaces the labels of a node.
func (t *Trial) SetLabels(name string, labels map[string]string) {
	node := t.cluster.state.Nodes[name]
	node.Labels = maps.Clone(labels)
	t.cluster.state.Nodes[name] = node
}

// SetConnected connects a node, or ends its connection.
func (t *Trial) SetConnected(name string, is bool) {
	live := t.cluster.live[name]
	live.since = t.cluster.now()
	if live.session = nil; is {
		live.session = &session{}
	}
}

// Decide looks at the whole cluster as the leader does after a change, and returns how many containers should
// move.
func (t *Trial) Decide() (moves int) {
	t.cluster.mu.Lock()
	defer t.cluster.mu.Unlock()
	for _, one := range decide.Decide(t.cluster.world().World, t.cluster.now()) {
		if one.Possible() {
			moves++
		}
	}
	return moves
}
