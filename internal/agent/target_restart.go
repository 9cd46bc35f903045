package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/state"
)

// In mode restart, the target starts the container from the files that came.

// maxPorts bounds what a source says of the ports of a container.
const maxPorts = 1 << 12

// expectation has the engine prepare what is to come, in a network namespace.
type expectation func(ctx context.Context, own engine.Engine, netns string) (engine.Arrival, error)

// expectRestore expects processes that CRIU restores.
func (t *target) expectRestore(ctx context.Context, own engine.Engine, netns string) (engine.Arrival, error) {
	return own.PrepareRestore(ctx, t.definition, netns)
}

// expectStart expects files from which the container is started anew.
func (t *target) expectStart(ctx context.Context, own engine.Engine, netns string) (engine.Arrival, error) {
	ports, err := decodePorts(t.offer.PortsJson)
	if err != nil {
		return nil, err
	}
	hold, err := t.agent.network.Prepare(t.definition.Network.Address)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.hold = hold
	t.mu.Unlock()
	return own.PrepareStart(ctx, t.definition, netns, ports)
}

func decodePorts(document []byte) ([]engine.Port, error) {
	if len(document) == 0 {
		return nil, nil
	}
	var ports []engine.Port
	if err := json.Unmarshal(document, &ports); err != nil {
		return nil, fmt.Errorf("%w: ports of the container: %w", errInvalid, err)
	}
	if len(ports) > maxPorts {
		return nil, fmt.Errorf("%w: the container listens on %d ports; the limit is %d", errInvalid,
			len(ports), maxPorts)
	}
	for _, p := range ports {
		if p.Protocol != "tcp" && p.Protocol != "udp" || p.Number == 0 {
			return nil, fmt.Errorf("%w: the container listens on an invalid port: %.20q %d",
				errInvalid, p.Protocol,
				p.Number)
		}
	}
	return ports, nil
}

// receiveFiles takes what has changed last, and the final marker.
func (t *target) receiveFiles(ctx context.Context, _ context.CancelCauseFunc) error {
	for {
		section, err := t.link.Data().Next()
		if err != nil {
			return err
		}
		switch section.Kind {
		case kindFiles:
			err = t.files.take(ctx, t, section)
		case link.KindFinal:
			return t.final(section, state.NewReceiver("", 0).Check)
		default:
			err = fmt.Errorf("a section %.40q comes when the container was stopped", section.Kind)
		}
		if err != nil {
			return err
		}
	}
}

// faultHealthy is where a fault can happen during probation: there is no step of this name.
const faultHealthy = "healthy"

// startAnew starts the container on probation, and lets clients in when it is healthy. Before, it can
// ask others, and gets their answers; nobody can ask it, so nothing that anybody has been told is
// lost if it does not become healthy.
func (t *target) startAnew(ctx context.Context) (time.Time, error) {
	t.agent.volumes.Forget(ctx, t.definition)
	if err := t.holdNew(); err != nil {
		return time.Time{}, err
	}
	ask := func() error {
		if err := t.move.fault(ctx, faultHealthy, "before"); err != nil {
			return err
		}
		return t.move.mayResume(ctx)
	}
	at, err := t.arrival.Restore(ctx, engine.Permission{Ask: ask}) // nobody is routed to it yet
	if err != nil {
		t.giveBackShared(ctx)
		return time.Time{}, err
	}
	return at, t.letIn(t.agent.ctx) // it stays, whoever wants what now
}

// giveBackShared lets the source find in shared volumes what the container has written there while
// it was on probation: that is not undone. It does what can be done in some seconds; the source starts
// its own copy again, whatever comes of it.
func (t *target) giveBackShared(ctx context.Context) {
	if t.move.tracker.Spec.Mode != migration.Restart {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackPatience)
	defer cancel()
	if err := t.agent.volumes.GiveBack(ctx, t.definition); err != nil {
		t.agent.log.Warn("cannot hand back shared volumes", "container", t.definition.Name, "error", err)
	}
}

const giveBackPatience = 10 * time.Second

// holdNew has those who want to connect wait here, as they do at the source, and has the source
// send on what does not open a connection. That it is not told costs the container the answers to
// what it asks.
func (t *target) holdNew() error {
	t.mu.Lock()
	hold := t.hold
	t.holding = true
	t.mu.Unlock()
	if err := hold.StartRequests(network.Local(t.definition.ID)); err != nil {
		return err
	}
	_ = t.link.Answer(kindRedirected, "")
	return nil
}

// takeHold gives the hold to who ends it.
func (t *target) takeHold() (hold *network.Hold, holding bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold, t.holding
}

func (t *target) dropHold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hold, t.holding = nil, false
}

// letIn lets those who have waited here connect to the container, and all that come after them.
func (t *target) letIn(ctx context.Context) error {
	hold, _ := t.takeHold()
	if hold == nil {
		return t.agent.attachments.RouteHere(ctx, t.definition)
	}
	if err := hold.Release(ctx, network.Local(t.definition.ID), 0); err != nil {
		return err
	}
	t.dropHold()
	return nil
}

// redirectBack sends the clients that have waited here to the source, where the container is started again.
func (t *target) redirectBack(ctx context.Context) error {
	hold, holding := t.takeHold()
	if hold == nil {
		return nil
	}
	err := error(nil)
	if holding {
		err = hold.Release(ctx, network.Via(t.move.tracker.Spec.Source), 0)
	} else {
		err = hold.Close()
	}
	if err == nil {
		t.dropHold()
	}
	return err
}
