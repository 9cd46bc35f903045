package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/departure"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/link"
)

// departing lets containers leave this node.
type departing struct {
	*departure.Departures
	agent *Agent
}

// Migrate implements rpc.Departing.
func (d departing) Migrate(ctx context.Context, request *api.MigrateRequest) (m *migrate.Move, err error) {
	a := d.agent
	spec, definition, node, err := d.Specify(ctx, request)
	if err != nil {
		return nil, err
	}
	settings := departure.SettingsFor(request, spec.Mode)
	demands, err := forecast.DemandsOf(request, settings, a.config.PostCopy, d.RefusedModes(node.Name))
	if err != nil {
		return nil, err
	}
	early := link.Connect(a.ctx, a.dataDialer(node), a.log)
	defer func() {
		if err != nil {
			early.End()
		}
	}()
	foreseen, err := a.forecaster().MayNeedBoth(ctx, spec.Mode, definition, node, demands)
	if err != nil {
		return nil, err
	}
	var auto *forecast.Auto
	if spec.Mode == migration.Auto {
		if auto, err = a.forecaster().Choose(ctx, definition, node, demands); err != nil {
			return nil, err
		}
		spec.Mode, foreseen = auto.Choice.Mode, auto.Both
	}
	early.CompleteFor(spec.Mode)
	settings = demands.Settings
	if auto != nil && spec.Mode == migration.Hybrid {
		settings.OnNoConvergence = migration.TurnHybrid
	}
	machine, err := migration.New(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if err := a.spare.Keep(); err != nil {
		return nil, err
	}
	m = a.moves.New(definition, machine)
	split := forecast.NewSplit(a.config.PostCopy, demands.Settings, auto, foreseen)
	if why := demands.Refused[migration.Hybrid]; why != "" && spec.Mode == migration.PreCopy {
		split.Forbid(why) // rounds that do not converge would turn into that mode
	}
	m.Take(newSource(a, m, definition, node,
		preparation{settings: settings, early: early, auto: auto, split: split}))
	if auto != nil {
		m.Tracker.Chose(auto.Choice, auto.Took)
	}
	if err := a.moves.Add(m); err != nil {
		return nil, err
	}
	a.samples.Stop(definition.ID)
	actions, err := machine.Step(migration.Start{})
	if err != nil {
		return nil, err
	}
	m.Begin(actions)
	if settings.Timeout > 0 {
		m.Limit(settings.Timeout)
	}
	return m, nil
}

// arrivals lets containers come to this node.
type arrivals struct{ agent *Agent }

// Accept implements rpc.Arriving.
func (r arrivals) Accept(from string, offer *api.Offer) (*migrate.Move, error) {
	a := r.agent
	if err := envelopes.CheckProtocol(from, offer); err != nil {
		return nil, err
	}
	var definition engine.Definition
	if err := json.Unmarshal(offer.DefinitionJson, &definition); err != nil {
		return nil, fmt.Errorf("%w: definition of the container: %w", errInvalid, err)
	}
	spec := migration.Spec{
		ID: offer.Migration, Side: migration.Target, Container: definition.ID, Name: definition.Name,
		Source: from, Target: a.self.Name, Mode: migration.Mode(offer.Mode),
		Started: time.Unix(0, offer.StartedUnixNanoseconds).UTC(),
	}
	machine, err := migration.New(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if err := envelopes.CheckSizes(offer); err != nil {
		return nil, err
	}
	if err := a.spare.Keep(); err != nil {
		return nil, err
	}
	m := a.moves.New(definition, machine)
	m.Take(movingNode{a}.Work(m, definition, offer))
	if err := a.moves.Add(m); err != nil {
		return nil, err
	}
	m.Begin(nil)
	return m, nil
}
