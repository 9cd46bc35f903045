package forecast

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Fill fills in a plan what each mode would cost. What is not known is measured: a plan may
// take longer than a choice.
func (f *Forecaster) Fill(ctx context.Context, plan *predict.Plan, definition engine.Definition,
	node identity.Node, demands predict.Demands,
	window time.Duration, layers int64) error {
	in, err := f.input(ctx, definition, node, demands)
	if err != nil {
		return err
	}
	if in.Link.BandwidthBitsPerSecond == 0 || window > 0 {
		if err := f.config.Links.Measure(ctx, node); err != nil {
			return err
		}
		in.Link = f.config.Links.WayTo(node.Name)
	}
	if window == 0 {
		window = f.watchTime(in)
	}
	if len(in.Container.Curve) == 0 || in.Container.Curve.Longest() < window.Seconds() {
		f.watchFor(ctx, &in, definition, window)
	}
	in.Container.MissingLayerBytes = layers
	for _, problem := range plan.Problems {
		in.Container.CheckpointImpossible = problem.What + ": " + problem.Why
	}
	if problems, err := f.config.Engines.EngineFor(definition).ExamineAnew(ctx, definition.ID); err == nil &&
		len(problems) > 0 {
		in.Container.RestartImpossible = problems[0].What + ": " + problems[0].Why
	}
	plan.Link = in.Link
	plan.Measured, _ = f.config.Samples.Last(definition.ID)
	plan.Measured.Name, plan.Measured.ID, plan.Measured.Node, plan.Measured.Container = definition.Name,
		definition.ID, f.config.Node, in.Container
	plan.Predictions = predict.All(in)
	choice, err := predict.Choose(plan.Predictions, demands)
	if err != nil {
		plan.Choice.Unmet = []string{err.Error()}
		return nil //nolint:nilerr // that no mode will do is an answer
	}
	plan.Choice = choice
	if plan.Mode == migration.Auto {
		plan.Mode = choice.Mode
	}
	plan.Better = predict.Better(in, predict.Of(in, choice.Mode))
	return nil
}
