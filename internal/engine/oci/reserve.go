package oci

import (
	"context"
	"errors"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/shim"
)

// arrivals makes containers that come from other nodes.
type arrivals struct {
	config  Config
	adapter Adapter
	records *records
	lookup  *lookup
	endings *endings
	volumes *volumes
	locks   *checkpoint.Locks
	criu    *checkpoint.CRIU
	waiting checkpoint.Arrivals
}

// Reserve lists the obstacles to restoring this container here.
func (r *arrivals) Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	if _, err := r.adapter.Expect(d); err != nil {
		return nil, err
	}
	if err := r.adapter.Away(); err != nil {
		return []engine.Problem{{
			What: r.adapter.Title(), Why: "it does not run on this node: " + err.Error(),
			Remedy: "install " + r.adapter.Title() + ", and start it",
		}}, nil
	}
	var problems []engine.Problem
	if _, err := r.criu.Tool(); err != nil {
		problems = append(problems, engine.Problem{What: "CRIU", Why: err.Error(),
			Remedy: "run \"godwit doctor\" on this node"})
	}
	if r.config.RunDir != shim.RunDir {
		problems = append(problems, engine.Problem{
			What: "the agent's run directory " + r.config.RunDir,
			Why:  shim.Program + " looks in " + shim.RunDir, Remedy: "start the agent without --run",
		})
	}
	for _, look := range []func(context.Context, engine.Definition) ([]engine.Problem, error){r.nameObstacles,
		r.adapter.Reserve} {
		found, err := look(ctx, d)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

func (r *arrivals) nameObstacles(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	if durable.Exists(r.records.arrivalPath(d.ID)) || durable.Exists(r.records.departurePath(d.ID)) {
		return []engine.Problem{{What: "container " + d.Name, Why: "it is arriving here, or leaving",
			Remedy: "wait until that is over"}}, nil
	}
	if _, err := r.lookup.find(ctx, d.ID); !errors.Is(err, engine.ErrNotFound) {
		return []engine.Problem{{What: "container " + d.Name, Why: "it is here already",
			Remedy: "remove what is left of it on this node"}}, err
	}
	if _, err := r.lookup.ask(ctx, d.Name); !errors.Is(err, engine.ErrNotFound) {
		return []engine.Problem{{
			What: "name " + d.Name, Why: "a container of " + r.adapter.Title() + " on this node has it",
			Remedy: "remove or rename that container",
		}}, err
	}
	return nil, nil
}
