package agent

import (
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// openMoves makes the migrations of this agent. Their journals are read later.
func openMoves(a *Agent) {
	a.moves = migrate.New(a.ctx, migrate.Config{
		Node: a.self.Name, Incarnation: a.incarnation(), Boot: a.boot,
		Dir: filepath.Join(a.config.StateDir, "migrations"), Spare: a.spare, Engines: a.engines,
		Own:   a.embedded,
		Looks: &a.looks, Timeout: a.config.callTimeout(), On: movingNode{a},
		RemoveLeft: func(id string) error { return postcopy.RemoveSpill(a.spillPath(id)) },
		Fault:      a.fault, Log: a.log,
	})
	a.recovery, a.containers = migrate.NewRecovery(a.moves), migrate.NewContainers(a.moves)
	a.operators = migrate.NewOperators(a.recovery,
		func(node string) time.Time { return a.peers.Contact(node) })
}

// movingNode is this node as its migrations see it.
type movingNode struct{ agent *Agent }

// Work implements migrate.Node.
func (n movingNode) Work(m *migrate.Move, of engine.Definition, offer *api.Offer) migrate.Work {
	spec := m.Tracker.Spec
	if spec.Side == migration.Target {
		return newTarget(n.agent, m, of, n.other(spec.Source), offer)
	}
	// it will only be undone, or finalised; after a crash nobody knows whether it was slowed down
	return newSource(n.agent, m, of, n.other(spec.Target), preparation{slowed: true})
}

// other finds a node that a journal names. If it is known no more it cannot be asked; what became of
// the migration can still be decided by an operator.
func (n movingNode) other(name string) identity.Node {
	node, err := n.agent.peers.Find(name)
	if err != nil {
		n.agent.log.Warn("a migration names an unknown node", "node", name)
		node = identity.Node{Name: name}
	}
	return node
}

// Changed implements migrate.Node.
func (n movingNode) Changed(of engine.Definition) {
	n.agent.lists.Changed(n.agent.engines.EngineFor(of))
}

// Ended implements migrate.Node.
func (n movingNode) Ended() { n.agent.keeper.Look() }

// Learn implements migrate.Node.
func (n movingNode) Learn(report migration.Report, side migration.Side, container string) {
	n.agent.experience.Learn(report, side, container, n.agent.peers.WayTo)
}

// finish keeps the report of a migration.
func (a *Agent) finish(m *migrate.Move, result migration.Finish) {
	var leaves []string
	if m.Tracker.Spec.Side == migration.Source && result.Result == migration.Moved {
		leaves = a.departures.LeavesBehind(m.Journal.Definition)
	}
	m.Finish(result, leaves)
}
