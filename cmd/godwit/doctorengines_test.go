package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/godwit/godwit/internal/doctor"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network/foreign"
)

func TestEngineRequirement(t *testing.T) {
	lacking := engine.Readiness{Title: "Some",
		Problems: []engine.Problem{{What: "a", Why: "b", Remedy: "c"}, {What: "d", Why: "e", Remedy: "f"}}}
	for want, one := range map[string]struct {
		ready engine.Readiness
		err   error
	}{
		"":                   {lacking, fmt.Errorf("gone: %w", engine.ErrAway)},
		"unknown no answer ": {lacking, errors.New("no answer")}, "missing a: b; d: e c; f": {lacking, nil},
		"found  ": {engine.Readiness{Title: "Some"}, nil},
	} {
		r, is := engineRequirement(one.ready, one.err)
		got := fmt.Sprintf("%s %s %s", r.Status, r.Detail, r.Advice.General)
		if is != (want != "") || is && got != want || r.Level == doctor.Required {
			t.Errorf("%+v: %q, %v, want %q", one, got, is, want)
		}
	}
}

func TestNetworkRequirement(t *testing.T) {
	two := []foreign.Obstacle{{What: "a", Remedy: "b"}, {What: "c", Remedy: "d"}}
	for want, one := range map[string]struct {
		found []foreign.Obstacle
		err   error
	}{
		"found  ": {}, "missing a; c b; d": {found: two},
		"unknown no answer ": {found: two, err: errors.New("no answer")},
	} {
		r := networkRequirement(one.found, one.err)
		if got := fmt.Sprintf("%s %s %s", r.Status, r.Detail, r.Advice.General); got != want ||
			r.Level != doctor.Recommended || r.Lost == "" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
