package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// Examine lists what stands against a container coming here from a node. It changes nothing.
func (a *Admission) Examine(ctx context.Context, from string, definition engine.Definition,
	offer *api.Offer) ([]migration.Problem, error) {
	if refused := a.rules.arrival(from, definition, offer); len(refused) > 0 {
		return refused, nil
	}
	// its engine would not answer, either
	if waiting := a.waiting(definition); len(waiting) > 0 {
		return waiting, nil
	}
	var theirs migration.Platform
	if err := json.Unmarshal(offer.PlatformJson, &theirs); err != nil {
		return nil, fmt.Errorf("%w: platform of the source: %w", api.ErrInvalid, err)
	}
	mode := migration.Mode(offer.Mode)
	ours, err := a.platform(mode)
	if err != nil {
		return nil, err
	}
	one, err := a.engines.Lookup(definition)
	if errors.Is(err, engine.ErrNoEngine) {
		return []migration.Problem{{
			What: "engine " + definition.EngineName, Why: a.node + " does not know it",
			Remedy: "use the same version of godwit on both nodes",
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	reserve, problems := one.ReserveAnew, migration.CompareAnew(theirs, ours)
	if mode != migration.Restart {
		reserve = one.Reserve
		problems, _ = migration.Compare(theirs, ours)
	}
	elsewhere, err := a.engines.Elsewhere(ctx, definition)
	if err != nil {
		return nil, err
	}
	if elsewhere != nil {
		return []migration.Problem{{
			What:   fmt.Sprintf("container %.12s", definition.ID),
			Why:    "engine " + elsewhere.Name() + " of " + a.node + " has a container of this ID",
			Remedy: "remove that container",
		}}, nil
	}
	found, err := reserve(ctx, definition)
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		problems = append(problems, migration.Problem{What: p.What, Why: p.Why, Remedy: p.Remedy})
	}
	address, err := a.examineAddress(ctx, definition)
	if err != nil {
		return nil, err
	}
	problems = append(problems, address...)
	room, err := a.examineRoom(from, definition, offer)
	return slices.Concat(problems, a.directories.ExamineArriving(definition), room), err
}

// Missing lists what of an image is not here. Where something stands against the container its
// engine may not be there to tell.
func (a *Admission) Missing(ctx context.Context, definition engine.Definition,
	problems []migration.Problem) (*api.Reservation, error) {
	images, err := a.engines.ImagesOf(definition.EngineName)
	if len(problems) > 0 && (err != nil || images != nil) {
		return &api.Reservation{}, nil
	}
	if err != nil {
		return nil, err
	}
	lack := engine.Lack{Image: len(definition.Layers) > 0 && !a.images.Has(definition.ImageID),
		Layers: definition.Layers}
	here := a.images.HasLayer
	if images != nil {
		here = a.layers.OnNode
		if lack, err = images.Lacks(ctx, imageOf(definition)); err != nil {
			return nil, err
		}
	}
	return &api.Reservation{MissingImage: lack.Image,
		MissingLayers: slices.DeleteFunc(slices.Clone(lack.Layers), here)}, nil
}

// imageOf is the image of a container as far as its definition tells.
func imageOf(definition engine.Definition) engine.Image {
	return engine.Image{ID: definition.ImageID, Names: []string{definition.Image}, Layers: definition.Layers,
		Namespace: definition.Namespace}
}
