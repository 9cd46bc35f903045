package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/wire/identity"
)

// newSplit starts with the prediction for a migration, if there is one.
func newSplit(use migration.PostCopyUse, settings migration.Settings, auto *autoMode,
	foreseen *foreseenSplit) *rounds.Split {
	if foreseen == nil {
		foreseen = &foreseenSplit{}
	}
	return rounds.NewSplit(use, settings, auto != nil, foreseen.whole, foreseen.bits)
}

// foreseenSplit is how long both nodes are needed if all memory follows, over a link of this many bits per
// second.
type foreseenSplit struct {
	whole time.Duration
	bits  float64
}

func foreseenOf(in predict.Input) *foreseenSplit {
	expected := predict.Of(in, migration.PostCopy).Split.Expected
	return &foreseenSplit{whole: seconds(min(expected, migration.MaxMaxSplit.Seconds()+1)),
		bits: in.Link.BandwidthBitsPerSecond}
}

// mayNeedBoth refuses a mode named by a user if both nodes would be needed for longer than allowed. Like
// the automatic choice, it first measures what is not known about the link and the container.
func (a *Agent) mayNeedBoth(ctx context.Context, mode migration.Mode, definition engine.Definition,
	node identity.Node,
	demands predict.Demands) (*foreseenSplit, error) {
	if mode != migration.PostCopy && mode != migration.Hybrid || !demands.Split.Bounded() {
		return nil, nil //nolint:nilnil // without a bound there is nothing to predict
	}
	in, err := a.inputForSplit(ctx, mode, definition, node, demands)
	if err != nil {
		return nil, err
	}
	if why := splitProblem(in, mode); why != nil {
		return nil, fmt.Errorf("%w: mode %s: %s; %s", errRefused, mode, why.Why, why.Remedy)
	}
	return foreseenOf(in), nil
}

// inputForSplit returns the input for predicting how long both nodes are needed.
func (a *Agent) inputForSplit(ctx context.Context, mode migration.Mode, definition engine.Definition,
	node identity.Node,
	demands predict.Demands) (predict.Input, error) {
	in, err := a.input(ctx, definition, node, demands)
	if err != nil {
		return in, err
	}
	if in.Link.BandwidthBitsPerSecond == 0 {
		if err := a.measure(ctx, node,
			choiceBudget(in.Container.PrivateBytes+in.Container.SharedBytes)); err != nil {
			return in, fmt.Errorf("node %s: %s", node.Name, plain(err))
		}
		in.Link = a.peers.WayTo(node.Name)
	}
	if len(in.Container.Curve) == 0 && mode == migration.Hybrid {
		a.watchFor(ctx, &in, definition, a.watchTime(in))
	}
	return in, nil
}

// splitProblem returns the objection to a mode that needs both nodes for too long; nil: none.
func splitProblem(in predict.Input, mode migration.Mode) *migration.Problem {
	if mode != migration.PostCopy && mode != migration.Hybrid {
		return nil
	}
	p := predict.Of(in, mode)
	why := in.Demands.Split.Refuses(seconds(min(p.Split.Expected, migration.MaxMaxSplit.Seconds()+1)))
	if why == "" {
		return nil
	}
	return &migration.Problem{
		What: "mode " + string(mode), Why: why,
		Remedy: "allow more with --max-split, or move it in mode pre-copy or cold",
	}
}

// planSplit adds to a plan the problem for which mayNeedBoth would refuse.
func (a *Agent) planSplit(ctx context.Context, plan *migration.Plan, definition engine.Definition,
	node identity.Node, demands predict.Demands) error {
	in, err := a.inputForSplit(ctx, plan.Mode, definition, node, demands)
	if err != nil {
		return err
	}
	if problem := splitProblem(in, plan.Mode); problem != nil {
		plan.Problems = append(plan.Problems, *problem)
	}
	return nil
}
