package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ErrNoEngine says that a container is of an engine that this node does not know.
var ErrNoEngine = errors.New("no such engine")

// Set is all engines of a node. The first one is the node's own: what nobody knows is looked for there.
type Set struct {
	engines []Engine

	mu     sync.Mutex
	owners map[string]Engine // by id of a container, as far as anybody has asked or told
}

// NewSet makes a set of engines with different names.
func NewSet(own Engine, others ...Engine) *Set {
	return &Set{engines: append([]Engine{own}, others...), owners: map[string]Engine{}}
}

// Of is the engine that has a container, or is to have it.
func (s *Set) Of(id string) Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	if owner := s.owners[id]; owner != nil {
		return owner
	}
	return s.engines[0]
}

// For is the engine for a container that is described, which Of knows from then on. Error: ErrNoEngine.
func (s *Set) For(definition Definition) (Engine, error) {
	one, err := s.named(definition.EngineName)
	if err != nil {
		return nil, err
	}
	s.own(definition.ID, one)
	return one, nil
}

// Label is how a container is told from one of another engine that has its name.
func Label(definition Definition) string {
	if definition.EngineName == "" {
		return definition.Name
	}
	return definition.EngineName + ":" + definition.Name
}

func (s *Set) own(id string, one Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owners[id] = one
}

func (s *Set) named(name string) (Engine, error) {
	if name == "" {
		return s.engines[0], nil
	}
	for _, one := range s.engines {
		if one.Name() == name {
			return one, nil
		}
	}
	return nil, fmt.Errorf("%w: %.40q", ErrNoEngine, name)
}

// List tells of every container of all engines, in order of name. An engine that is not there, or does not answer, has
// none: its containers cannot be moved, and must not keep others from it.
func (s *Set) List(ctx context.Context) ([]Container, error) {
	var all []Container
	for i, one := range s.engines {
		found, err := one.List(ctx)
		if err != nil && i == 0 {
			return nil, err
		}
		for _, container := range found {
			s.own(container.Definition.ID, one)
		}
		all = append(all, found...)
	}
	slices.SortStableFunc(all, func(a, b Container) int { return cmp.Compare(a.Definition.Name, b.Definition.Name) })
	return all, ctx.Err()
}

// Inspect finds a container by name, id, or unique prefix of an id, and with the engine's name and a colon before it in that
// engine only. Error: ErrNotFound, also if it is not clear whose is meant.
func (s *Set) Inspect(ctx context.Context, ref string) (Container, error) {
	if name, rest, found := strings.Cut(ref, ":"); found {
		one, err := s.named(name)
		if err != nil {
			return Container{}, fmt.Errorf("container %.80q: %w: %w", ref, ErrNotFound, err)
		}
		return s.inspect(ctx, one, rest)
	}
	s.mu.Lock()
	owner := s.owners[ref]
	s.mu.Unlock()
	if owner != nil {
		return s.inspect(ctx, owner, ref)
	}
	var found []Container
	var names []string
	var failed error
	for _, one := range s.engines {
		container, err := s.inspect(ctx, one, ref)
		switch {
		case err == nil:
			found = append(found, container)
			names = append(names, one.Name()+":"+container.Definition.Name)
		case !errors.Is(err, ErrNotFound):
			failed = errors.Join(failed, err)
		}
	}
	switch {
	case len(found) == 0 && failed != nil:
		return Container{}, failed
	case len(found) == 0:
		return Container{}, fmt.Errorf("container %.80q: %w", ref, ErrNotFound)
	case len(found) == 1:
		return found[0], nil
	}
	return Container{}, fmt.Errorf("container %.80q: %w: it may be %s", ref, ErrNotFound, strings.Join(names, " or "))
}

func (s *Set) inspect(ctx context.Context, one Engine, ref string) (Container, error) {
	container, err := one.Inspect(ctx, ref)
	if err == nil {
		s.own(container.Definition.ID, one)
	}
	return container, err
}

// VolumePath is where the content of a volume is on this node, or would be.
func (s *Set) VolumePath(volume Volume) (string, error) {
	one, err := s.named(volume.Engine)
	if err != nil {
		return "", err
	}
	return one.VolumePath(volume)
}
