package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

// some is an engine with a few containers; tests ask nothing else of it.
type some struct {
	Engine
	name string
	have []Container
	down error
}

func (s *some) Name() string { return s.name }

func (*some) Capabilities() Capabilities { return Capabilities{} }

func (s *some) List(context.Context) ([]Container, error) {
	if s.down != nil {
		return nil, s.down
	}
	return s.have, nil
}

func (s *some) Inspect(_ context.Context, ref string) (Container, error) {
	if s.down != nil {
		return Container{}, s.down
	}
	for _, ctr := range s.have {
		if ctr.Definition.Name == ref || ctr.Definition.ID == ref {
			return ctr, nil
		}
	}
	return Container{}, ErrNotFound
}

func made(engine, name, id string) Container {
	return Container{Definition: Definition{EngineName: engine, Name: name, ID: id}}
}

func TestSet(t *testing.T) {
	own := &some{name: "embedded", have: []Container{made("", "web", "1"), made("", "db", "2")}}
	other := &some{name: "docker", have: []Container{made("docker", "web", "3"),
		made("docker", "cache", "4")}}
	s := NewSet(own, other)
	for ref, want := range map[string]string{"db": "2", "cache": "4", "docker:web": "3", "embedded:web": "1",
		"3": "3", "docker:4": "4"} {
		if ctr, err := s.Inspect(t.Context(), ref); err != nil || ctr.Definition.ID != want {
			t.Errorf("%s: %+v, %v, want %s", ref, ctr.Definition, err, want)
		}
	}
	for ref, why := range map[string]string{"web": "embedded:web or docker:web", "none": "",
		"podman:web": "no such engine", "docker:db": ""} {
		if _, err := s.Inspect(t.Context(), ref); !errors.Is(err, ErrNotFound) ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %s", ref, err, why)
		}
	}
	if s.EngineFor(other.have[1].Definition) != other || s.EngineFor(own.have[0].Definition) != own ||
		s.owner("3") != other {
		t.Error("a container is looked for in another engine")
	}
	all, err := s.List(t.Context())
	if err != nil || len(all) != 4 || Label(all[0].Definition) != "docker:cache" ||
		Label(all[1].Definition) != "db" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestSetFor: a claim about a container that may come, whoever makes it, does not affect a container that
// is here.
func TestSetFor(t *testing.T) {
	own, other := &some{name: "embedded", have: []Container{made("", "db", "5")}}, &some{name: "docker"}
	s := NewSet(own, other)
	if one, err := s.Lookup(Definition{EngineName: "docker", ID: "5"}); err != nil || one != other {
		t.Errorf("%v, %v", one, err)
	}
	if one, err := s.Elsewhere(t.Context(), Definition{EngineName: "docker", ID: "5"}); err != nil ||
		one != own {
		t.Errorf("%v, %v: it would be here twice", one, err)
	}
	if one, err := s.Elsewhere(t.Context(), own.have[0].Definition); err != nil || one != nil {
		t.Errorf("%v, %v", one, err)
	}
	if ctr, err := s.Inspect(t.Context(), "5"); err != nil || ctr.Definition.Name != "db" {
		t.Errorf("%+v, %v: it is looked for elsewhere", ctr, err)
	}
	for _, name := range []string{"lxc", "embedded"} {
		if _, err := s.Lookup(Definition{EngineName: name, ID: "6"}); !errors.Is(err, ErrNoEngine) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.owners) != 1 {
		t.Errorf("%d containers are remembered, and there is one", len(s.owners))
	}
}

// TestSetAway: a missing engine does not mean that its containers are gone.
func TestSetAway(t *testing.T) {
	own, other := &some{name: "embedded"},
		&some{name: "docker", have: []Container{made("docker", "web", "3")}}
	s := NewSet(own, other)
	if _, err := s.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	other.down = ErrAway
	if all, err := s.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := s.Inspect(t.Context(), "3"); !errors.Is(err, ErrAway) || errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if one, err := s.Elsewhere(t.Context(), Definition{ID: "3"}); err != nil || one != other {
		t.Errorf("%v, %v: it would come although it is here", one, err)
	}
	if _, err := s.Inspect(t.Context(), "never heard of"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	other.down, other.have = nil, nil
	if _, err := s.Inspect(t.Context(), "3"); !errors.Is(err, ErrNotFound) || len(s.owners) != 0 {
		t.Errorf("%v, %d are remembered", err, len(s.owners))
	}
}

// stuck is an engine that never answers.
type stuck struct{ some }

func (s *stuck) Inspect(ctx context.Context, _ string) (Container, error) {
	<-ctx.Done()
	return Container{}, ctx.Err()
}

// TestSetStuck: an engine that never answers does not keep containers from arriving at another engine.
func TestSetStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSet(&some{name: "embedded"}, &stuck{some{name: "docker"}})
		if one, err := s.Elsewhere(t.Context(), Definition{ID: "7"}); err != nil || one != nil {
			t.Errorf("%v, %v", one, err)
		}
	})
}

// TestSetForgets: containers that an engine no longer has are forgotten.
func TestSetForgets(t *testing.T) {
	own := &some{name: "embedded", have: []Container{made("", "a", "1"), made("", "b", "2")}}
	s := NewSet(own)
	_, _ = s.List(t.Context())
	own.have = own.have[1:]
	if _, err := s.List(t.Context()); err != nil || len(s.owners) != 1 {
		t.Errorf("%v, %d are remembered", err, len(s.owners))
	}
}

// TestSetDown: an engine that does not answer does not hide the containers of others, and its own names do
// not count as free.
func TestSetDown(t *testing.T) {
	down := errors.New("connection refused")
	own, other := &some{name: "embedded", have: []Container{made("", "db", "2")}},
		&some{name: "docker", down: down}
	s := NewSet(own, other)
	if all, err := s.ListAnswered(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if all, err := s.List(t.Context()); !errors.Is(err, down) || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := s.Inspect(t.Context(), "db"); err != nil {
		t.Error(err)
	}
	if _, err := s.Inspect(t.Context(), "cache"); !errors.Is(err, down) {
		t.Errorf("%v: it may be there", err)
	}
	own.down = down
	if _, err := s.ListAnswered(t.Context()); !errors.Is(err, down) {
		t.Error("nobody is told that the node's own engine fails")
	}
}

// TestOldListsForgetNobody: only a fresh answer of an engine shows that it no longer has a container: not a
// cached list, and not an answer that began before the container existed.
func TestOldListsForgetNobody(t *testing.T) {
	other := &some{name: "docker", have: []Container{made("docker", "web", "3")}}
	late := &slow{some: other}
	s := NewSet(&some{name: "embedded"}, late)
	if _, err := s.Inspect(t.Context(), "3"); err != nil {
		t.Fatal(err)
	}
	kept := func(context.Context, Engine) ([]Container, error) { return nil, nil }
	if _, err := s.ListAnsweredBy(t.Context(), kept); err != nil || s.Owner("3") != "docker" {
		t.Errorf("%v: an old list forgets a container", err)
	}
	other.have = nil
	late.during = func() {
		other.have = []Container{made("docker", "new", "4")}
		if _, err := s.Inspect(t.Context(), "4"); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.List(t.Context()); err != nil || s.Owner("3") != "" || s.Owner("4") != "docker" {
		t.Errorf("%v, owners %q and %q: a list that was under way forgets a container", err, s.Owner("3"),
			s.Owner("4"))
	}
}

// slow is an engine whose list is outdated when it arrives.
type slow struct {
	*some
	during func()
}

func (s *slow) List(ctx context.Context) ([]Container, error) {
	list, err := s.some.List(ctx)
	s.during()
	return list, err
}
