package forecast

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/wire/identity"
)

// NewSplit starts with the prediction for a migration, if there is one.
func NewSplit(use migration.PostCopyUse, settings migration.Settings, auto *Auto,
	foreseen *Both) *rounds.Split {
	if foreseen == nil {
		foreseen = &Both{}
	}
	return rounds.NewSplit(use, settings, auto != nil, foreseen.Whole, foreseen.BitsPerSecond)
}

// Both is how long both nodes are needed if all memory follows, over a link of this many bits per second.
type Both struct {
	Whole         time.Duration
	BitsPerSecond float64
}

func bothOf(in predict.Input) *Both {
	expected := predict.Of(in, migration.PostCopy).Split.Expected
	return &Both{Whole: seconds(min(expected, migration.MaxMaxSplit.Seconds()+1)),
		BitsPerSecond: in.Link.BandwidthBitsPerSecond}
}

// MayNeedBoth refuses a mode named by a user if both nodes would be needed for longer than allowed. Like
// the automatic choice, it first measures what is not known about the link and the container.
func (f *Forecaster) MayNeedBoth(ctx context.Context, mode migration.Mode, definition engine.Definition,
	node identity.Node,
	demands predict.Demands) (*Both, error) {
	if mode != migration.PostCopy && mode != migration.Hybrid || !demands.Split.Bounded() {
		return nil, nil //nolint:nilnil // without a bound there is nothing to predict
	}
	in, err := f.inputForSplit(ctx, mode, definition, node, demands)
	if err != nil {
		return nil, err
	}
	if why := splitProblem(in, mode); why != nil {
		return nil, fmt.Errorf("%w: mode %s: %s; %s", api.ErrRefused, mode, why.Why, why.Remedy)
	}
	return bothOf(in), nil
}

// inputForSplit returns the input for predicting how long both nodes are needed.
func (f *Forecaster) inputForSplit(ctx context.Context, mode migration.Mode, definition engine.Definition,
	node identity.Node,
	demands predict.Demands) (predict.Input, error) {
	in, err := f.input(ctx, definition, node, demands)
	if err != nil {
		return in, err
	}
	if in.Link.BandwidthBitsPerSecond == 0 {
		if err := f.config.Links.MeasureBriefly(ctx, node,
			in.Container.PrivateBytes+in.Container.SharedBytes); err != nil {
			return in, fmt.Errorf("node %s: %s", node.Name, api.Plain(err))
		}
		in.Link = f.config.Links.WayTo(node.Name)
	}
	if len(in.Container.Curve) == 0 && mode == migration.Hybrid {
		f.watchFor(ctx, &in, definition, f.watchTime(in))
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

// PlanSplit adds to a plan the problem for which MayNeedBoth would refuse.
func (f *Forecaster) PlanSplit(ctx context.Context, plan *migration.Plan, definition engine.Definition,
	node identity.Node, demands predict.Demands) error {
	in, err := f.inputForSplit(ctx, plan.Mode, definition, node, demands)
	if err != nil {
		return err
	}
	if problem := splitProblem(in, plan.Mode); problem != nil {
		plan.Problems = append(plan.Problems, *problem)
	}
	return nil
}
