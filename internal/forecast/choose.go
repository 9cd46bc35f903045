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

// Auto is what a migration goes by whose mode was chosen here.
type Auto struct {
	rounds.Auto

	Took   time.Duration // to choose
	Choice predict.Choice
	Both   *Both
}

// FrozenBytes are those that are expected to leave in the freeze; 0: nobody knows.
func (a *Auto) FrozenBytes() float64 {
	if a == nil {
		return 0
	}
	return a.Forecast.Prediction.FrozenBytes.Expected
}

const (
	// autoAge is how old what was measured of a container may be for a choice.
	autoAge = time.Minute
	// A container is watched for a share of the time that its memory takes, before a mode is
	// chosen: not so long that it matters.
	watchShare    = 10
	shortestWatch = 100 * time.Millisecond
	longestWatch  = time.Second
	// startWork is what it takes to start a container, beside what it is then looked at.
	startWork = 0.1
	// What nobody has measured can be anything between these.
	slowLink, fastLink = 4e6, 2e9 // bits per second
)

// Choose chooses how to move a container. What is not known is measured only if the choice depends on it.
func (f *Forecaster) Choose(ctx context.Context, definition engine.Definition, node identity.Node,
	demands predict.Demands) (*Auto, error) {
	auto := &Auto{Auto: rounds.Auto{Demands: demands, Began: time.Now()}}
	in, err := f.input(ctx, definition, node, demands)
	if err != nil {
		return nil, err
	}
	if in.Link.BandwidthBitsPerSecond == 0 && !sure(variedLink(in)) {
		if err := f.config.Links.MeasureBriefly(ctx, node,
			in.Container.PrivateBytes+in.Container.SharedBytes); err != nil {
			// it could not be moved there, either
			return nil, fmt.Errorf("node %s: %s", node.Name, api.Plain(err))
		}
		in.Link = f.config.Links.WayTo(node.Name)
	}
	if len(in.Container.Curve) == 0 && !sure(variedWriting(in)) {
		f.watchFor(ctx, &in, definition, f.watchTime(in))
	}
	if auto.Choice, err = predict.Choose(predict.All(in), demands); err != nil {
		return nil, fmt.Errorf("%w: %w", api.ErrRefused, err)
	}
	auto.Forecast = predict.Forecast{Prediction: predict.Of(in, auto.Choice.Mode), Input: in}
	auto.Both = bothOf(in)
	auto.Took = time.Since(auto.Began)
	return auto, nil
}

// variedLink are an input over links between which the real one is.
func variedLink(in predict.Input) []predict.Input {
	slow, fast := in, in
	slow.Link.BandwidthBitsPerSecond, fast.Link.BandwidthBitsPerSecond = slowLink, fastLink
	return append(variedWriting(slow), variedWriting(fast)...)
}

// variedWriting are an input of containers that write nothing, and all that they have all the time.
func variedWriting(in predict.Input) []predict.Input {
	if len(in.Container.Curve) > 0 {
		return []predict.Input{in}
	}
	idle, busy := in, in
	all := float64(in.Container.PrivateBytes + in.Container.SharedBytes)
	idle.Container.Curve = predict.Curve{{Seconds: 0.1}, {Seconds: 60}}
	busy.Container.Curve = predict.Curve{{Seconds: 0.1, Bytes: all}, {Seconds: 60, Bytes: all}}
	return []predict.Input{idle, busy}
}

// sure reports whether the choice is the same for all of these.
func sure(inputs []predict.Input) bool {
	var first migration.Mode
	for i, in := range inputs {
		choice, err := predict.Choose(predict.All(in), in.Demands)
		if err != nil || i > 0 && choice.Mode != first {
			return false
		}
		first = choice.Mode
	}
	return true
}
