package attachment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// removed are the containers that were adopted here and that their engine has no more, of those
// engines that answer. One that leaves while the engines are asked is not noted any more
// afterwards, one that comes was not before.
func (a *Adopter) removed(ctx context.Context, now time.Time) []adoption {
	noted := a.notes.list()
	if len(noted) == 0 {
		return nil
	}
	var gone []adoption
	for _, one := range a.config.Routed {
		found, err := one.List(ctx)
		for _, have := range noted {
			if have.Engine != one.Name() {
				continue
			}
			is := func(c engine.Container) bool { return c.Definition.ID == have.Container }
			missing := err == nil && !slices.ContainsFunc(found, is) && !have.First.Alive() &&
				!a.config.Moves.Moving(have.Container)
			if a.notes.missed(have.Container, missing, now) {
				gone = append(gone, have)
			}
		}
	}
	noted = a.notes.list()
	return slices.DeleteFunc(gone, func(one adoption) bool {
		return !slices.Contains(noted, one) || a.config.Moves.Moving(one.Container)
	})
}

// forgetRemoved drops the attachments and gives back the addresses of containers that their engine's tools
// removed.
func (a *Adopter) forgetRemoved(ctx context.Context) error {
	var err error
	for _, one := range a.removed(ctx, time.Now()) {
		if failed := a.forgetAdopted(one); failed != nil {
			err = errors.Join(err, fmt.Errorf("container %.12s was removed: %w", one.Container, failed))
		}
	}
	return errors.Join(err, a.notes.save())
}

func (a *Adopter) forgetAdopted(one adoption) error {
	if a.config.Moves.Left(one.Container) || a.config.Locations.Elsewhere(one.Address, one.Container) {
		a.notes.drop(one.Container) // with its address
		return nil
	}
	if err := a.config.Network.Detach(one.Container); err != nil {
		return err
	}
	a.config.Removed(one.Container)
	release := func() error { return a.config.Network.ReleaseLease(one.Container) }
	if !a.config.Leases.AtHome(one.Address) {
		release = func() error {
			return a.config.Leases.GiveBack(engine.Definition{
				EngineName: one.Engine, ID: one.Container, Network: engine.Network{Address: one.Address},
			})
		}
	}
	if err := release(); err != nil {
		return err
	}
	a.notes.drop(one.Container)
	return nil
}
