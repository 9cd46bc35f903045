package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/godwit/godwit/internal/doctor"
	"github.com/godwit/godwit/internal/engine"
)

func TestEngineRequirement(t *testing.T) {
	lacking := engine.Readiness{Title: "Some", Problems: []engine.Problem{{What: "a", Why: "b", Remedy: "c"}, {What: "d", Why: "e", Remedy: "f"}}}
	for want, one := range map[string]struct {
		ready engine.Readiness
		err   error
	}{
		"": {lacking, fmt.Errorf("gone: %w", engine.ErrAway)}, "unknown no answer ": {lacking, errors.New("no answer")}, "missing a: b; d: e c; f": {lacking, nil},
		"found  ": {engine.Readiness{Title: "Some"}, nil},
	} {
		r, is := engineRequirement(one.ready, one.err)
		got := fmt.Sprintf("%s %s %s", r.Status, r.Detail, r.Advice.General)
		if is != (want != "") || is && got != want || r.Level == doctor.Required {
			t.Errorf("%+v: %q, %v, want %q", one, got, is, want)
		}
	}
}
