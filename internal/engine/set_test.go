package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// some is an engine that knows a few containers; nothing else is asked of it.
type some struct {
	Engine
	name string
	have []Container
	down error
}

func (s *some) Name() string { return s.name }

func (s *some) List(context.Context) ([]Container, error) { return s.have, s.down }

func (s *some) Inspect(_ context.Context, ref string) (Container, error) {
	for _, one := range s.have {
		if one.Definition.Name == ref || one.Definition.ID == ref {
			return one, nil
		}
	}
	return Container{}, errors.Join(ErrNotFound, s.down)
}

func made(engine, name, id string) Container {
	return Container{Definition: Definition{EngineName: engine, Name: name, ID: id}}
}

func TestSet(t *testing.T) {
	own := &some{name: "embedded", have: []Container{made("", "web", "1"), made("", "db", "2")}}
	other := &some{name: "docker", have: []Container{made("docker", "web", "3"), made("docker", "cache", "4")}}
	s := NewSet(own, other)
	for ref, want := range map[string]string{"db": "2", "cache": "4", "docker:web": "3", "embedded:web": "1", "3": "3", "docker:4": "4"} {
		if one, err := s.Inspect(t.Context(), ref); err != nil || one.Definition.ID != want {
			t.Errorf("%s: %+v, %v, want %s", ref, one.Definition, err, want)
		}
	}
	for ref, why := range map[string]string{"web": "embedded:web or docker:web", "none": "", "podman:web": "no such engine", "docker:db": ""} {
		if _, err := s.Inspect(t.Context(), ref); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %s", ref, err, why)
		}
	}
	if s.Of("4") != other || s.Of("1") != own || s.Of("never heard of") != own {
		t.Error("a container is looked for in another engine")
	}
	all, err := s.List(t.Context())
	if err != nil || len(all) != 4 || Label(all[0].Definition) != "docker:cache" || Label(all[1].Definition) != "db" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestSetFor: who is told of a container that is to come is asked about it from then on.
func TestSetFor(t *testing.T) {
	own, other := &some{name: "embedded"}, &some{name: "docker"}
	s := NewSet(own, other)
	if one, err := s.For(Definition{EngineName: "docker", ID: "5"}); err != nil || one != other || s.Of("5") != other {
		t.Errorf("%v, %v", one, err)
	}
	if _, err := s.For(Definition{EngineName: "lxc", ID: "6"}); !errors.Is(err, ErrNoEngine) {
		t.Error(err)
	}
}

// TestSetDown: an engine that does not answer keeps nobody from the containers of others.
func TestSetDown(t *testing.T) {
	down := errors.New("connection refused")
	own, other := &some{name: "embedded", have: []Container{made("", "db", "2")}}, &some{name: "docker", down: down}
	s := NewSet(own, other)
	if all, err := s.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := s.Inspect(t.Context(), "db"); err != nil {
		t.Error(err)
	}
	own.down = down
	if _, err := s.List(t.Context()); !errors.Is(err, down) {
		t.Error("nobody is told that the node's own engine fails")
	}
}
