package agent

import (
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/sampling"
)

// sampledNode is the node as sampling sees it.
type sampledNode struct{ agent *Agent }

func (n sampledNode) Engine(of engine.Definition) sampling.Engine {
	return n.agent.engines.EngineFor(of)
}

func (n sampledNode) Connections(container string) (count int, queuedBytes int64, err error) {
	connections, err := n.agent.network.Established(container)
	for _, one := range connections {
		queuedBytes += int64(one.UnreadBytes) + int64(one.UnackedBytes)
	}
	return len(connections), queuedBytes, err
}

func (n sampledNode) Moving(container string) bool { return n.agent.moves.Moving(container) }

func (n sampledNode) Staged(container string) bool { return n.agent.stages.Of(container) != nil }
