package main

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/doctor"
	"github.com/godwit/godwit/internal/network/foreign"
	"github.com/godwit/godwit/internal/wire/identity"
)

// networkCheck looks for obstacles to containers' packets. It uses the pool of this node, or the pool that
// the node would have.
func networkCheck(state *string) func(context.Context) (doctor.Requirement, bool) {
	return func(context.Context) (doctor.Requirement, bool) {
		pool := netip.MustParsePrefix(defaultPool)
		if id, err := identity.Load(*state); err == nil {
			pool = id.Pool
		}
		return networkRequirement(foreign.Obstacles("", pool)), true
	}
}

// networkRequirement returns the network's line in the report.
func networkRequirement(found []foreign.Obstacle, err error) doctor.Requirement {
	r := doctor.Requirement{
		Name: "free path for containers' packets", Level: doctor.Recommended, Status: doctor.Found,
		Lost: "containers cannot be reached from outside their node, or cannot reach other machines",
	}
	if err != nil {
		r.Status, r.Detail = doctor.Unknown, err.Error()
		return r
	}
	var whats, remedies []string
	for _, one := range found {
		whats, remedies = append(whats, one.What), append(remedies, one.Remedy)
	}
	if len(found) > 0 {
		r.Status, r.Detail, r.Advice = doctor.Missing, strings.Join(whats, "; "),
			doctor.Advice{General: strings.Join(slices.Compact(remedies), "; ")}
	}
	return r
}
