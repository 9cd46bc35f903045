package agent

import (
	"context"
	"net"
	"net/netip"

	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/frozen"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/switchover"
	"github.com/godwit/godwit/internal/transfer/dump"
	"github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// frozenCopy makes the frozen copy of the container, which is not frozen yet.
func frozenCopy(s *source) *frozen.Copy {
	return frozen.New(s.agent.ctx, frozen.Config{
		Engines: s.agent.engines, Migration: s.move, Container: s.definition, ID: s.id(),
		Here: s.agent.self.Name, Target: s.target.Name,
		Restarts: s.move.Tracker.Spec.Mode == migration.Restart, Log: s.agent.log,
	})
}

// linkTo makes the data connections of the migration, of which none is open. early are those that were made
// before; nil: none.
func linkTo(s *source, early *link.Early) *link.Link {
	return link.New(link.Config{
		ID: s.id(), Target: s.target.Name, Mode: s.move.Tracker.Spec.Mode, Cores: s.agent.cores,
		Dial: s.agent.dataDialer(s.target), Peers: s.agent.peers.Links, Fresh: cluster.ProbeEvery,
		Settings: &s.settings, Figures: s.move.Tracker, Apart: files.Purpose, Log: s.agent.log,
		Layers: func() (sent stream.Counters, sending bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.layers.Left()
		},
	}, early)
}

// dumpOf makes the dump of the container, which is not prepared.
func dumpOf(s *source) *dump.Dump {
	return dump.New(dump.Config{
		Container: s.definition.ID, Name: s.definition.Name, Dir: s.imagesDir(),
		Engine: func() dump.Engine { return s.agent.engines.EngineFor(s.definition) },
		Link:   s.link, Memory: s.memory, Packets: s.packets, Keep: s.frozen.Keep,
		Files: func(ctx context.Context) error {
			return s.files.Final(ctx, s.link.Out())
		},
		Layers:  func() state.Layers { return s.agent.layersOf(s.definition) },
		Figures: s.move.Tracker, Log: s.agent.log,
	})
}

// dataDialer dials data connections to a node.
func (a *Agent) dataDialer(node identity.Node) link.Dial {
	return func(ctx context.Context) (net.Conn, error) {
		conn, err := wire.Dial(ctx, a.id, node.Address, node.Name)
		if err != nil {
			return nil, err
		}
		return conn, nil
	}
}

// packetsOf makes the packets of the container, which are not held yet.
func packetsOf(s *source) *switchover.Packets {
	return switchover.New(switchover.Config{
		Network: holdingNetwork{s.agent.network}, Attachments: s.agent.attachments, Container: s.definition,
		Target: s.target.Name, Held: s.move.Tracker.Held, Ended: network.ErrEnded,
		Final: func() bool { return s.move.Record().Final },
	})
}

// holdingNetwork is this node's network, for a switchover.
type holdingNetwork struct{ *network.Network }

// Prepare implements switchover.Network.
func (n holdingNetwork) Prepare(address netip.Addr) (switchover.Hold, error) {
	prepared, err := n.Network.Prepare(address)
	if err != nil {
		return nil, err
	}
	return prepared, nil
}
