package restart

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/location"
)

// Start starts a container of the embedded engine for a user. With force it does so although it cannot
// be found out whether another node has it.
func (r *Restarts) Start(ctx context.Context, one engine.Container, force bool) error {
	d := one.Definition
	switch {
	case d.EngineName != "":
		return fmt.Errorf("%w: container %s belongs to %s: start it with that engine", api.ErrRefused, d.Name,
			d.EngineName)
	case one.State == engine.Running:
		return nil
	case one.State == engine.Damaged:
		return fmt.Errorf("%w: what is recorded of container %s cannot be read", api.ErrRefused, d.Name)
	}
	standing, err := r.engine.Standing(one)
	if err != nil {
		return err
	}
	if standing.Unheld && !force {
		return fmt.Errorf("%w: container %s: %s; %s", api.ErrRefused, d.Name, standing.Why, byForce(d))
	}
	if one.Leaving != nil {
		return fmt.Errorf("%w: container %s: %s%s", engine.ErrBusy, d.Name, standing.Why,
			r.migrations.Unusable(one))
	}
	if err := r.mayStart(d, force); err != nil {
		return err
	}
	err = r.members.Elsewhere(ctx, d, r.hasSeen(d.ID))
	switch {
	case errors.Is(err, location.ErrThere):
		return err
	case err != nil && !force:
		return fmt.Errorf("%w; %s", err, byForce(d))
	}
	err = r.startAgain(ctx, d, force, r.engine.StartAfter)
	if err == nil {
		r.Ran(d.ID)
	}
	return err
}

// startAgain starts a container, and makes what it needs of this node when the engine has locked it.
func (r *Restarts) startAgain(
	ctx context.Context, d engine.Definition, force bool,
	start func(ctx context.Context, id string, prepare embedded.Prepare) error,
) error {
	return start(ctx, d.ID, func(ctx context.Context, d engine.Definition) error {
		if err := r.mayStart(d, force); err != nil {
			return err
		}
		return r.prepare(ctx, d)
	})
}

// mayStart refuses to start a container with which a migration here has to do. A user who knows
// better may start one of whose migration the journal cannot be used. A journal that does not say
// of which container it is stands against none: if a container here had left by its migration the
// engine's note would say so, and else the other nodes.
func (r *Restarts) mayStart(d engine.Definition, force bool) error {
	if err := r.migrations.Busy(d.ID); err != nil {
		return err
	}
	if id := r.migrations.UnreadAmong(d.ID); id != "" && !force {
		return fmt.Errorf("%w: the journal of migration %s cannot be used, so it is unknown whether "+
			"container %s "+
			`has moved away: see "godwit migration ls"; %s`, engine.ErrBusy, id, d.Name, byForce(d))
	}
	return nil
}
