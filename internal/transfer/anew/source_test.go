package anew

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestExamine: what stands against the move is told before anything else is asked.
func TestExamine(t *testing.T) {
	n := newNode()
	n.problems = []engine.Problem{{What: "a terminal"}}
	s, _ := sourceOf(n)
	if _, found, err := s.Examine(t.Context()); err != nil || len(found) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
	n.wants(t, "examine")
	n.problems, n.ports = nil, []engine.Port{{Protocol: "tcp", Number: 80}}
	ports, found, err := s.Examine(t.Context())
	if err != nil || len(found) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
	if heard, err := decodePorts(ports); err != nil || !slices.Equal(heard, n.ports) {
		t.Errorf("the target hears %+v, %v", heard, err)
	}
	n.wants(t, "examine", "ports")
	for _, fails := range []string{"examine", "ports"} {
		n.fails = map[string]error{fails: errTest}
		if _, _, err := s.Examine(t.Context()); !errors.Is(err, errTest) {
			t.Errorf("%s: %v", fails, err)
		}
	}
}

// TestStop: packets are told that no process is left only when that is certain.
func TestStop(t *testing.T) {
	for fails, want := range map[string][]string{
		"":       {"halt one for b", "stopped"},
		"halt":   {"halt one for b"},
		"halted": {"halt one for b"},
	} {
		n := newNode()
		n.fails[fails] = errTest
		s, _ := sourceOf(n)
		if err := s.Stop(t.Context()); (err == nil) != (fails == "") {
			t.Errorf("%q: %v", fails, err)
		}
		n.wants(t, want...)
	}
}

// TestRevive: a container that was not stopped is left alone. One that was gets a new network before it is
// started again.
func TestRevive(t *testing.T) {
	n := newNode()
	s, tracker := sourceOf(n)
	if err := s.Revive(t.Context()); err != nil {
		t.Error(err)
	}
	n.wants(t, "reviving", "ask")
	n.halted = true
	all := []string{"reviving", "ask", "renew", "forget", "revive"}
	for i, fails := range all {
		if fails == "reviving" || fails == "forget" {
			continue
		}
		n.fails = map[string]error{fails: errTest}
		if err := s.Revive(t.Context()); !errors.Is(err, errTest) {
			t.Errorf("%s: %v", fails, err)
		}
		n.wants(t, all[:i+1]...)
	}
	n.fails = nil
	if err := s.Revive(t.Context()); err != nil {
		t.Error(err)
	}
	n.wants(t, all...)
	report := tracker.Report(migration.Record{Spec: tracker.Spec}, false)
	if !slices.Contains(report.Decisions, "started again at a: healthy") {
		t.Errorf("the report tells %q", report.Decisions)
	}
}

// TestRemedy: mode restart is advised where the container's engine can do it, and nowhere else.
func TestRemedy(t *testing.T) {
	told := []engine.Problem{{What: "a ring", Remedy: "close it"}, {What: "a task"}}
	for what, n := range map[string]*node{
		"able":     newNode(),
		"unable":   {problems: []engine.Problem{{What: "a terminal"}}},
		"nobody":   {fails: map[string]error{"examine": errTest}},
		"no cause": newNode(),
	} {
		problems := slices.Clone(told)
		if what == "no cause" {
			problems = nil
		}
		found := Remedy(t.Context(), n, container(), problems)
		if len(found) != len(problems) {
			t.Errorf("%s: %+v", what, found)
		}
		for i, p := range found {
			advised := strings.Contains(p.Remedy, "--mode restart")
			if advised != (what == "able") || !strings.HasPrefix(p.Remedy, told[i].Remedy) {
				t.Errorf("%s: %+v", what, p)
			}
		}
		if !slices.Equal(problems[:min(1, len(problems))], told[:min(1, len(problems))]) {
			t.Errorf("%s: what was told is changed", what)
		}
	}
}
