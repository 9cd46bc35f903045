package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/transfer/anew"
	"github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/state"
)

// faultHealthy is where a fault can happen during probation: there is no step of this name.
const faultHealthy = "healthy"

// startingAnew makes what starts the container in mode restart.
func startingAnew(t *target) *anew.Target {
	return anew.NewTarget(t.agent.ctx, anew.TargetConfig{
		Container: t.definition, PortsJSON: t.offer.GetPortsJson(), Source: t.move.Tracker.Spec.Source,
		Network: arrivingNetwork{t.agent}, Volumes: t.agent.volumes,
		Data: t.link.Data,
		May: func(ctx context.Context) error {
			if err := t.move.Fault(ctx, faultHealthy, "before"); err != nil {
				return err
			}
			return t.move.MayResume(ctx)
		},
		Log: t.agent.log,
	})
}

// arrivingNetwork is this node's network, for a container that is started anew.
type arrivingNetwork struct{ agent *Agent }

// Prepare implements anew.Network.
func (n arrivingNetwork) Prepare(address netip.Addr) (anew.Hold, error) {
	prepared, err := n.agent.network.Prepare(address)
	if err != nil {
		return nil, err
	}
	return prepared, nil
}

// RouteHere implements anew.Network.
func (n arrivingNetwork) RouteHere(ctx context.Context, container engine.Definition) error {
	return n.agent.attachments.RouteHere(ctx, container)
}

// expectation has the engine prepare what is to come, in a network namespace.
type expectation func(ctx context.Context, own engine.Engine, netns string) (engine.Arrival, error)

// expectRestore expects processes that CRIU restores.
func (t *target) expectRestore(ctx context.Context, own engine.Engine, netns string) (engine.Arrival, error) {
	return own.PrepareRestore(ctx, t.definition, netns)
}

// startAnew starts the container from the files that came.
func (t *target) startAnew(ctx context.Context) (time.Time, error) {
	return t.anew.Start(ctx, t.arrival)
}

// receiveFiles takes what has changed last, and the final marker.
func (t *target) receiveFiles(ctx context.Context, _ context.CancelCauseFunc) error {
	for {
		section, err := t.link.Data().Next()
		if err != nil {
			return err
		}
		switch section.Kind {
		case files.KindRound:
			err = t.files.Take(ctx, section)
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
