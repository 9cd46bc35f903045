package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
)

// Set holds all engines of a node. The first one is the node's own: unknown containers are looked up there.
type Set struct {
	engines []Engine

	mu     sync.Mutex
	owners map[string]owner // by id of a container, as reported by the engines themselves
	told   int              // counts their reports
}

// owner is the engine that last reported a container.
type owner struct {
	engine Engine
	told   int // number of that report
}

// NewSet makes a set of engines with different names.
func NewSet(own Engine, others ...Engine) *Set {
	return &Set{engines: append([]Engine{own}, others...), owners: map[string]owner{}}
}

// EngineFor returns the engine of a container of this node, or of one for which Lookup has found an engine.
// Only the local definition is trusted: a peer's claim about another container with its ID changes nothing.
func (s *Set) EngineFor(definition Definition) Engine {
	if one, err := s.Lookup(definition); err == nil {
		return one
	}
	return s.engines[0]
}

// Lookup finds the engine for a described container, which may be yet to come. Error: ErrNoEngine.
func (s *Set) Lookup(definition Definition) (Engine, error) {
	if definition.EngineName == s.engines[0].Name() { // it would have two labels
		return nil, fmt.Errorf("%w: containers of %.40s must not name an engine", ErrNoEngine,
			definition.EngineName)
	}
	return s.named(definition.EngineName)
}

// ImagesOf returns the images of the engine with this name; nil: it gets images from the agent. Error:
// ErrNoEngine.
func (s *Set) ImagesOf(name string) (Images, error) {
	one, err := s.named(name)
	if err != nil {
		return nil, err
	}
	return one.Capabilities().Images, nil
}

// Images returns the images of all engines that keep images themselves.
func (s *Set) Images() (all []Images) {
	for _, one := range s.engines {
		if images := one.Capabilities().Images; images != nil {
			all = append(all, images)
		}
	}
	return all
}

// elsewherePatience is how long an engine may take to answer whether it has a container that arrives at
// another engine.
const elsewherePatience = 3 * time.Second

// Elsewhere returns another engine that has a container with the same id as the definition; nil: none, as
// far as they answer.
func (s *Set) Elsewhere(ctx context.Context, definition Definition) (Engine, error) {
	own := s.EngineFor(definition)
	for _, one := range s.engines {
		if one == own {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, elsewherePatience)
		_, err := s.inspect(asking, one, definition.ID)
		cancel()
		if err == nil || s.owner(definition.ID) == one { // it may not answer, but has reported it
			return one, nil
		}
	}
	return nil, ctx.Err()
}

// Owner returns the name of the engine that last reported a container; empty: none.
func (s *Set) Owner(id string) string {
	if one := s.owner(id); one != nil {
		return one.Name()
	}
	return ""
}

// All returns the engines, the node's own first. The slice must not be changed.
func (s *Set) All() []Engine { return s.engines }

// LetGo makes engines release what they hold of containers that have ended.
func (s *Set) LetGo() {
	for _, one := range s.engines {
		if holder := one.Capabilities().Releaser; holder != nil {
			holder.LetGo()
		}
	}
}

// Leaves returns the notes of all engines why containers leave, as far as they can be read without another
// program. With an error, it returns those that could be read.
func (s *Set) Leaves() (all []Leave, failed error) {
	for _, one := range s.engines {
		if noter := one.Capabilities().LeaveNoter; noter != nil {
			leaves, err := noter.Leaves()
			all, failed = append(all, leaves...), errors.Join(failed, err)
		}
	}
	return all, failed
}

// Label returns a name that distinguishes a container from another engine's container of the same name.
func Label(definition Definition) string {
	if definition.EngineName == "" {
		return definition.Name
	}
	return definition.EngineName + ":" + definition.Name
}

// owner returns the engine that last reported a container; nil: none.
func (s *Set) owner(id string) Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owners[id].engine
}

// Ask lists the containers of one engine, freshly, and notes their owner. It forgets containers that the
// engine reported before the question and no longer has.
func (s *Set) Ask(ctx context.Context, one Engine) ([]Container, error) {
	asked := s.now()
	found, err := one.List(ctx)
	if err != nil {
		return found, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.owners, func(_ string, have owner) bool {
		return have.engine == one &&
			have.told <= asked
	})
	for _, container := range found {
		s.own(container.Definition.ID, one)
	}
	return found, nil
}

// now returns the number of reports so far. An answer that began before a later report may not include it.
func (s *Set) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told
}

// own notes that an engine has reported a container. The caller has locked mu.
func (s *Set) own(id string, one Engine) {
	s.told++
	s.owners[id] = owner{one, s.told}
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

// List returns the containers of all engines, sorted by name. An engine that is not there has none. The
// containers of an engine that does not answer are not known: that is an error, beside the containers of
// the others.
func (s *Set) List(ctx context.Context) ([]Container, error) {
	all, own, others := s.list(ctx, s.Ask)
	return all, errors.Join(own, others)
}

// ListAnswered is List for display only: an engine that does not answer, other than the node's own, does
// not hide the rest.
func (s *Set) ListAnswered(ctx context.Context) ([]Container, error) {
	return s.ListAnsweredBy(ctx, s.Ask)
}

// ListAnsweredBy is ListAnswered with a different way to list an engine's containers. Such lists may be
// old, so they do not change owners.
func (s *Set) ListAnsweredBy(ctx context.Context, list ListFunc) ([]Container, error) {
	all, own, _ := s.list(ctx, list)
	return all, own
}

// ListFunc lists the containers of an engine, as Engine.List does.
type ListFunc func(ctx context.Context, of Engine) ([]Container, error)

// list also returns separate errors of the node's own engine and of other ones.
func (s *Set) list(ctx context.Context, list ListFunc) (all []Container, own, others error) {
	answers := askAll(s.engines, func(one Engine) ([]Container, error) { return list(ctx, one) })
	for i, one := range s.engines {
		found, err := answers[i].told, answers[i].err
		switch {
		case err == nil:
		case i == 0 || guard.Stack(err) != "":
			own = errors.Join(own, err)
		case !errors.Is(err, ErrAway):
			others = errors.Join(others, fmt.Errorf("engine %s: %w", one.Name(), err))
		}
		all = append(all, found...)
	}
	slices.SortStableFunc(all,
		func(a, b Container) int { return cmp.Compare(a.Definition.Name, b.Definition.Name) })
	return all, errors.Join(own, ctx.Err()), others
}

// answer is an engine's answer.
type answer[T any] struct {
	told T
	err  error
}

// askAll asks all engines in parallel and returns their answers in the order of the engines: engines that
// hang take as long as the slowest one.
func askAll[T any](engines []Engine, ask func(Engine) (T, error)) []answer[T] {
	answers := make([]answer[T], len(engines))
	var asked sync.WaitGroup
	for i, one := range engines {
		asked.Go(func() {
			answers[i].err = guard.Do(func() (err error) {
				answers[i].told, err = ask(one)
				return err
			})
		})
	}
	asked.Wait()
	return answers
}

// Inspect finds a container by name, id, or unique prefix of an id; with an engine's name and a colon
// before it, in that engine only. Errors: ErrNotFound, also if several engines have a match; ErrAway if the
// engine that reported the container is not there.
func (s *Set) Inspect(ctx context.Context, ref string) (Container, error) {
	if name, rest, found := strings.Cut(ref, ":"); found {
		one, err := s.named(name)
		if err != nil {
			return Container{}, fmt.Errorf("container %.80q: %w: %w", ref, ErrNotFound, err)
		}
		return s.inspect(ctx, one, rest)
	}
	if owner := s.owner(ref); owner != nil {
		container, err := s.inspect(ctx, owner, ref)
		if !errors.Is(err, ErrNotFound) {
			return container, err
		}
	}
	var found []Container
	var names []string
	var failed error
	for i, asked := range askAll(s.engines,
		func(one Engine) (Container, error) { return s.inspect(ctx, one, ref) }) {
		container, err := asked.told, asked.err
		switch {
		case err == nil:
			found = append(found, container)
			names = append(names, s.engines[i].Name()+":"+container.Definition.Name)
		case !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrAway):
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
	return Container{}, fmt.Errorf("container %.80q: %w: it may be %s", ref, ErrNotFound,
		strings.Join(names, " or "))
}

// inspect asks one engine, and notes its report.
func (s *Set) inspect(ctx context.Context, one Engine, ref string) (Container, error) {
	asked := s.now()
	container, err := one.Inspect(ctx, ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.own(container.Definition.ID, one)
	case errors.Is(err, ErrNotFound) && s.owners[ref].engine == one && s.owners[ref].told <= asked:
		delete(s.owners, ref)
	}
	return container, err
}

// VolumePath returns where the content of a volume is on this node, or would be.
func (s *Set) VolumePath(volume Volume) (string, error) {
	one, err := s.named(volume.Engine)
	if err != nil {
		return "", err
	}
	return one.VolumePath(volume)
}
