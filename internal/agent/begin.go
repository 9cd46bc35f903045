package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/volumes"
	"github.com/godwit/godwit/internal/wire/identity"
)

// equip gives a move the work of its side.
func (a *Agent) equip(m *move, definition engine.Definition, offer *api.Offer) {
	spec := m.tracker.Spec
	if spec.Side == migration.Source {
		// it will only be undone, or finalised; after a crash nobody knows whether it was slowed down
		m.take(newSource(a, m, definition, a.node(spec.Target), preparation{slowed: true}))
	} else {
		m.take(newTarget(a, m, definition, a.node(spec.Source), offer))
	}
}

// node finds a node that a journal names. If it is known no more it cannot be asked; what became of
// the migration can still be decided by an operator.
func (a *Agent) node(name string) identity.Node {
	node, err := a.peers.Find(name)
	if err != nil {
		a.log.Warn("a migration names an unknown node", "node", name)
		node = identity.Node{Name: name}
	}
	return node
}

// migrate begins to move a container away.
func (a *Agent) migrate(ctx context.Context, request *api.MigrateRequest) (m *move, err error) {
	spec, definition, node, err := a.specify(ctx, request)
	if err != nil {
		return nil, err
	}
	settings := settingsFor(request, spec.Mode)
	demands, err := forecast.DemandsOf(request, settings, a.config.PostCopy, a.refusedModes(node.Name))
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
	m = newMove(a, a.moves.journal(spec.ID, definition), machine)
	split := forecast.NewSplit(a.config.PostCopy, demands.Settings, auto, foreseen)
	if why := demands.Refused[migration.Hybrid]; why != "" && spec.Mode == migration.PreCopy {
		split.Forbid(why) // rounds that do not converge would turn into that mode
	}
	m.take(newSource(a, m, definition, node,
		preparation{settings: settings, early: early, auto: auto, split: split}))
	if auto != nil {
		m.tracker.Chose(auto.Choice, auto.Took)
	}
	if err := a.moves.add(m); err != nil {
		return nil, err
	}
	a.samples.Stop(definition.ID)
	actions, err := machine.Step(migration.Start{})
	if err != nil {
		return nil, err
	}
	m.begin(actions)
	if settings.Timeout > 0 {
		m.limit(settings.Timeout)
	}
	return m, nil
}

// settingsOf are the settings that a user has chosen.
func settingsOf(request *api.MigrateRequest) migration.Settings {
	return migration.Settings{
		DowntimeTarget: seconds(request.DowntimeTargetSeconds), MaxRounds: int(request.MaxRounds),
		Timeout: seconds(request.TimeoutSeconds), BandwidthLimit: request.BandwidthLimitBitsPerSecond,
		OnNoConvergence: migration.NoConvergence(request.OnNoConvergence),
		KeepResidual:    seconds(request.KeepFootprintSeconds),
		Checkpoints:     int(request.Checkpoints),
		MaxSplit:        seconds(request.MaxSplitSeconds), Spill: request.Spill,
		NewInodes: request.NewInodes, Volumes: migration.JoinVolumeWays(request.Volumes),
	}
}

// settingsFor completes the settings of a mode that specify has accepted them for.
func settingsFor(request *api.MigrateRequest, mode migration.Mode) migration.Settings {
	settings, _ := settingsOf(request).For(mode) // it was looked at
	return settings
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// specify finds what a user means, and refuses what makes no sense.
func (a *Agent) specify(ctx context.Context, request *api.MigrateRequest) (migration.Spec, engine.Definition,
	identity.Node, error) {
	fail := func(err error) (migration.Spec, engine.Definition, identity.Node, error) {
		return migration.Spec{}, engine.Definition{}, identity.Node{}, err
	}
	settings := settingsOf(request)
	mode, err := migration.ParseMode(request.Mode)
	if err == nil {
		settings, err = settings.For(mode)
	}
	if err != nil {
		return fail(fmt.Errorf("%w: %w", errInvalid, err))
	}
	if request.Wait {
		if err := a.awaitOver(ctx, request.Container); err != nil {
			return fail(err)
		}
	}
	container, err := a.idle(ctx, request.Container)
	if err == nil {
		container, err = a.adopter.Connected(ctx, container)
	}
	if err != nil {
		return fail(err)
	}
	if err := volumes.CheckWays(container.Definition, settings.Volumes); err != nil {
		return fail(err)
	}
	node, err := a.peers.Find(request.Node)
	if err != nil {
		return fail(err)
	}
	if err := migration.CheckRoute(a.self.Name, node.Name); err != nil {
		return fail(fmt.Errorf("%w: %w", errRefused, err))
	}
	if err := a.rules().DepartureRefused(node.Name, mode, container.Definition); err != nil {
		return fail(fmt.Errorf("%w: %w", errRefused, err))
	}
	if container.State != engine.Running {
		return fail(fmt.Errorf("%w: %s is %s; only a running container can be migrated", engine.ErrNotRunning,
			container.Definition.Name, container.State))
	}
	spec := migration.Spec{
		ID: cmp.Or(request.Migration, randomHex(8)), Side: migration.Source,
		Container: container.Definition.ID,
		Name:      container.Definition.Name,
		Source:    a.self.Name, Target: node.Name, Mode: mode, Started: time.Now().UTC(),
	}
	return spec, container.Definition, node, nil
}

// accept begins a migration that a peer offers.
func (a *Agent) accept(from string, offer *api.Offer) (*move, error) {
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
	m := newMove(a, a.moves.journal(spec.ID, definition), machine)
	a.equip(m, definition, offer)
	if err := a.moves.add(m); err != nil {
		return nil, err
	}
	m.begin(nil)
	return m, nil
}
