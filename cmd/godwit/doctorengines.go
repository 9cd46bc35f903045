package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/doctor"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/engines"
)

// enginePatience bounds how long an engine may take to describe itself.
const enginePatience = 10 * time.Second

// engineChecks returns the checks of this machine's engines.
func engineChecks(program string) (checks []func(context.Context) (doctor.Requirement, bool)) {
	for _, kind := range engines.All() {
		if kind.Readiness == nil {
			continue
		}
		checks = append(checks, func(ctx context.Context) (doctor.Requirement, bool) {
			ctx, cancel := context.WithTimeout(ctx, enginePatience)
			defer cancel()
			return engineRequirement(kind.Readiness(ctx, program))
		})
	}
	return checks
}

// engineRequirement returns an engine's line in the report; false if the engine is not installed.
func engineRequirement(ready engine.Readiness, err error) (doctor.Requirement, bool) {
	if errors.Is(err, engine.ErrAway) {
		return doctor.Requirement{}, false
	}
	r := doctor.Requirement{
		Name: "engine " + ready.Title, Level: doctor.Optional, Status: doctor.Found, Version: ready.Version,
		Lost: "containers of " + ready.Title + " cannot come here; those that are here can leave",
	}
	if err != nil {
		r.Status, r.Detail = doctor.Unknown, err.Error()
		return r, true
	}
	var why, remedies []string
	for _, p := range ready.Problems {
		why, remedies = append(why, p.What+": "+p.Why), append(remedies, p.Remedy)
	}
	if len(why) > 0 {
		r.Status, r.Detail, r.Advice = doctor.Missing, strings.Join(why, "; "),
			doctor.Advice{General: strings.Join(remedies, "; ")}
	}
	return r, true
}
