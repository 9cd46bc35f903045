package agent

import (
	"github.com/godwit/godwit/internal/latestart"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/arriving"
)

// arrivingMemory makes the memory of the container, of which nothing has come.
func arrivingMemory(t *target) *arriving.Memory {
	config := arriving.Config{
		Spec: t.move.Tracker.Spec, Offered: t.offer.GetMemoryBytes(), Migration: arrivingMove{t},
		Engine: func() arriving.Engine { return t.agent.engines.EngineFor(t.definition) },
		Link:   t.link, Residuals: t.agent.residuals, Figures: t.move.Tracker,
		Silence: t.agent.config.peerTimeout(), Reaches: t.agent.peers.Reaches, Ended: t.move.Done(),
		Log: t.agent.log,
	}
	if t.offer != nil { // else nothing comes any more
		config.Limit = t.stateLimit()
	}
	return arriving.New(t.agent.ctx, config)
}

// arrivingMove is the migration of a target, for its memory.
type arrivingMove struct{ target *target }

// Record implements arriving.Migration.
func (m arrivingMove) Record() migration.Record { return m.target.move.Record() }

// Arrives implements arriving.Migration.
func (m arrivingMove) Arrives() bool {
	m.target.mu.Lock()
	defer m.target.mu.Unlock()
	return m.target.arrival != nil
}

// MovedOn implements arriving.Migration.
func (m arrivingMove) MovedOn() bool { return m.target.agent.moves.Moving(m.target.definition.ID) }

// lateStart makes the start of the container by an engine that is told when.
func lateStart(t *target, memory *arriving.Memory) *latestart.Start {
	return latestart.NewStart(latestart.Config{
		Container: t.definition, Network: t.agent.network, Started: memory.Fill, Answer: t.link.Answer,
		OnBridge:  t.arriveOnBridge,
		Unwritten: t.files.Between,
	})
}
