package departure

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/volumes"
	"github.com/godwit/godwit/internal/wire/identity"
)

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

// SettingsFor completes the settings of a mode that Specify has accepted them for.
func SettingsFor(request *api.MigrateRequest, mode migration.Mode) migration.Settings {
	settings, _ := settingsOf(request).For(mode) // it was looked at
	return settings
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Specify finds what a user means, and refuses what makes no sense.
func (d *Departures) Specify(ctx context.Context, request *api.MigrateRequest) (migration.Spec,
	engine.Definition, identity.Node, error) {
	fail := func(err error) (migration.Spec, engine.Definition, identity.Node, error) {
		return migration.Spec{}, engine.Definition{}, identity.Node{}, err
	}
	settings := settingsOf(request)
	mode, err := migration.ParseMode(request.Mode)
	if err == nil {
		settings, err = settings.For(mode)
	}
	if err != nil {
		return fail(fmt.Errorf("%w: %w", api.ErrInvalid, err))
	}
	if request.Wait {
		if err := d.Containers.AwaitOver(ctx, request.Container); err != nil {
			return fail(err)
		}
	}
	container, err := d.Containers.Idle(ctx, request.Container)
	if err == nil {
		container, err = d.Connected(ctx, container)
	}
	if err != nil {
		return fail(err)
	}
	if err := volumes.CheckWays(container.Definition, settings.Volumes); err != nil {
		return fail(err)
	}
	node, err := d.Peers.Find(request.Node)
	if err != nil {
		return fail(err)
	}
	if err := migration.CheckRoute(d.Node, node.Name); err != nil {
		return fail(fmt.Errorf("%w: %w", api.ErrRefused, err))
	}
	if err := d.Rules.DepartureRefused(node.Name, mode, container.Definition); err != nil {
		return fail(fmt.Errorf("%w: %w", api.ErrRefused, err))
	}
	if container.State != engine.Running {
		return fail(fmt.Errorf("%w: %s is %s; only a running container can be migrated", engine.ErrNotRunning,
			container.Definition.Name, container.State))
	}
	spec := migration.Spec{
		ID: cmp.Or(request.Migration, migrate.NewID()), Side: migration.Source,
		Container: container.Definition.ID,
		Name:      container.Definition.Name,
		Source:    d.Node, Target: node.Name, Mode: mode, Started: time.Now().UTC(),
	}
	return spec, container.Definition, node, nil
}
