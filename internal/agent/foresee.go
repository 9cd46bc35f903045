package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/transfer/volumes"
	"github.com/godwit/godwit/internal/wire/identity"
)

// demandsOf is what a user wants of a migration whose mode is chosen, where policies refuse some modes.
func demandsOf(request *api.MigrateRequest, settings migration.Settings, use migration.PostCopyUse,
	refused map[migration.Mode]string) (predict.Demands, error) {
	demands := predict.Demands{
		Settings: settings, Deadline: seconds(request.DeadlineSeconds), MaxBytes: request.MaxBytes,
		NoPostCopy: request.NoPostCopy,
		Refused:    refused,
	}
	// Who says what to do with rounds that do not converge does not want anything else to be done.
	named := request.OnNoConvergence != "" && settings.OnNoConvergence != migration.TurnHybrid
	demands.NoPostCopy = demands.NoPostCopy || named && request.Mode == string(migration.Auto)
	asked, byAuto := migration.SplitLimits(use, settings)
	demands.Split = asked
	if request.Mode == string(migration.Auto) {
		demands.Split = byAuto
	}
	splits := request.Mode == string(migration.PostCopy) || request.Mode == string(migration.Hybrid) ||
		settings.OnNoConvergence == migration.TurnHybrid
	switch auto := request.Mode == string(migration.Auto); {
	case settings.OnNoConvergence == migration.TurnHybrid && refused[migration.Hybrid] != "":
		return demands, fmt.Errorf("%w: --on-no-convergence %s is not allowed: %s", errRefused,
			migration.Hybrid, refused[migration.Hybrid])
	case splits && asked.Forbidden:
		return demands, fmt.Errorf("%w: %s", errRefused, asked.Refuses(0))
	case demands.NoPostCopy && settings.MaxSplit != 0:
		return demands, fmt.Errorf("%w: --no-post-copy and --max-split %s exclude each other: choose one",
			errInvalid, settings.MaxSplit)
	case demands.NoPostCopy && settings.Spill:
		return demands, fmt.Errorf("%w: --no-post-copy and --spill exclude each other: choose one",
			errInvalid)
	case !auto && (demands.Deadline != 0 || demands.MaxBytes != 0 || demands.NoPostCopy):
		return demands, fmt.Errorf("%w: --deadline, --max-bytes and --no-post-copy apply only to mode %s",
			errInvalid, migration.Auto)
	case demands.Deadline < 0 || demands.MaxBytes < 0:
		return demands, fmt.Errorf("%w: --deadline and --max-bytes must not be negative", errInvalid)
	case demands.NoPostCopy && settings.OnNoConvergence == migration.TurnHybrid:
		return demands, fmt.Errorf("%w: --no-post-copy and --on-no-convergence hybrid exclude each other: "+
			"choose one", errInvalid)
	case demands.MaxBytes > 0 && demands.MaxBytes < leastMaxBytes:
		return demands, fmt.Errorf("%w: --max-bytes %d: must be at least %d", errInvalid,
			demands.MaxBytes, int64(leastMaxBytes))
	}
	return demands, nil
}

// leastMaxBytes is what the state of the smallest container takes.
const leastMaxBytes = 16 << 10

// autoMode is what a migration goes by whose mode was chosen here.
type autoMode struct {
	rounds.Auto

	took     time.Duration // to choose
	choice   predict.Choice
	foreseen *foreseenSplit
}

// frozenBytes are those that are expected to leave in the freeze; 0: nobody knows.
func (a *autoMode) frozenBytes() float64 {
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

// chooseMode chooses how to move a container. What is not known is measured only if the choice depends on it.
func (a *Agent) chooseMode(ctx context.Context, definition engine.Definition, node identity.Node,
	demands predict.Demands) (*autoMode, error) {
	auto := &autoMode{Auto: rounds.Auto{Demands: demands, Began: time.Now()}}
	in, err := a.input(ctx, definition, node, demands)
	if err != nil {
		return nil, err
	}
	if in.Link.BandwidthBitsPerSecond == 0 && !sure(variedLink(in)) {
		if err := a.measure(ctx, node,
			choiceBudget(in.Container.PrivateBytes+in.Container.SharedBytes)); err != nil {
			// it could not be moved there, either
			return nil, fmt.Errorf("node %s: %s", node.Name, plain(err))
		}
		in.Link = a.peers.WayTo(node.Name)
	}
	if len(in.Container.Curve) == 0 && !sure(variedWriting(in)) {
		a.watchFor(ctx, &in, definition, a.watchTime(in))
	}
	if auto.choice, err = predict.Choose(predict.All(in), demands); err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	auto.Forecast = predict.Forecast{Prediction: predict.Of(in, auto.choice.Mode), Input: in}
	auto.foreseen = foreseenOf(in)
	auto.took = time.Since(auto.Began)
	return auto, nil
}

// input is what a prediction is made from: what is known now, with nothing watched.
func (a *Agent) input(ctx context.Context, definition engine.Definition, node identity.Node,
	demands predict.Demands) (predict.Input, error) {
	in := predict.Input{
		Link: a.peers.WayTo(node.Name), Demands: demands,
		// the other is taken to be like this one
		Source: a.machine.Predicted(), Target: a.machine.Predicted(),
	}
	container, err := a.engines.Inspect(ctx, definition.ID)
	if err != nil {
		return in, err
	}
	seen, err := a.samples.Look(ctx, container.Definition)
	if err != nil {
		return in, err
	}
	if _, fresh := a.samples.Known(definition.ID, 0, autoAge); !fresh {
		seen.Curve = nil // of then; all else was just looked at
	}
	in.Container = seen.Container
	in.Source.CompressBytesPerSec = seen.CompressBytesPerSecond
	a.experience.Of(node.Name, definition.ID, &in)
	if in.Container.StartSeconds == 0 && definition.Health == nil {
		if ports, err := a.engines.EngineFor(definition).Ports(ctx, definition.ID); err == nil &&
			len(ports) == 0 {
			in.Container.StartSeconds = engine.SettledAfter.Seconds() + startWork
		}
	}
	in.Container.FileTreeBytes, in.Container.FileTreeEntries, err = a.filesOf(ctx, definition)
	if g := a.stages.Of(definition.ID); g != nil && g.Target() == node.Name {
		if told := g.Describe(); told.State == migration.StageReady {
			in.Container.StagedAge = max(time.Since(told.Fresh).Seconds(), shortestWatch.Seconds())
		}
	} else if age := a.placements.ageAt(definition.ID, node.Name); age > 0 {
		in.Container.StagedAge = max(age.Seconds(), shortestWatch.Seconds())
	}
	return in, err
}

// filesOf is how much there is in the directories that move. What cannot be looked at is left out:
// the migration refuses it, and says better why.
func (a *Agent) filesOf(ctx context.Context, definition engine.Definition) (bytes, entries int64, err error) {
	trees, err := a.volumes.Trees(ctx, definition)
	if err != nil {
		return 0, 0, err
	}
	defer files.LetGo(trees)
	for _, tree := range trees {
		if size, err := volumes.TreeSize(ctx, tree); err == nil {
			bytes, entries = bytes+size.Bytes, entries+size.Entries
		}
	}
	return bytes, entries, ctx.Err()
}

// watchTime is for how long to watch what a container writes before its mode is chosen.
func (a *Agent) watchTime(in predict.Input) time.Duration {
	bits := in.Link.BandwidthBitsPerSecond
	if bits == 0 {
		bits = fastLink
	}
	first := seconds(float64(in.Container.PrivateBytes+in.Container.SharedBytes) * 8 / bits)
	return min(max(first/watchShare, shortestWatch), longestWatch)
}

// watchFor measures what a container writes and holds.
func (a *Agent) watchFor(ctx context.Context, in *predict.Input, definition engine.Definition,
	window time.Duration) {
	for _, w := range predict.Windows() {
		if seconds(w) <= window || in.Container.Curve.Longest() == 0 {
			measured := a.samples.Measure(ctx, definition, seconds(w), autoAge)
			if len(measured.Curve) == 0 {
				return // nobody can tell
			}
			before := in.Container
			in.Container = measured.Container
			in.Container.FileTreeBytes, in.Container.FileTreeEntries,
				in.Container.StagedAge = before.FileTreeBytes, before.FileTreeEntries, before.StagedAge
			in.Container.StopSeconds, in.Container.StartSeconds = before.StopSeconds, before.StartSeconds
			in.Source.CompressBytesPerSec = measured.CompressBytesPerSecond
		}
	}
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

// forecast fills in a plan what each mode would cost. What is not known is measured: a plan may
// take longer than a choice.
func (a *Agent) forecast(ctx context.Context, plan *predict.Plan, definition engine.Definition,
	node identity.Node, demands predict.Demands,
	window time.Duration, layers int64) error {
	in, err := a.input(ctx, definition, node, demands)
	if err != nil {
		return err
	}
	if in.Link.BandwidthBitsPerSecond == 0 || window > 0 {
		if err := a.measure(ctx, node, measureBudget()); err != nil {
			return err
		}
		in.Link = a.peers.WayTo(node.Name)
	}
	if window == 0 {
		window = a.watchTime(in)
	}
	if len(in.Container.Curve) == 0 || in.Container.Curve.Longest() < window.Seconds() {
		a.watchFor(ctx, &in, definition, window)
	}
	in.Container.MissingLayerBytes = layers
	for _, problem := range plan.Problems {
		in.Container.CheckpointImpossible = problem.What + ": " + problem.Why
	}
	if problems, err := a.engines.EngineFor(definition).ExamineAnew(ctx, definition.ID); err == nil &&
		len(problems) > 0 {
		in.Container.RestartImpossible = problems[0].What + ": " + problems[0].Why
	}
	plan.Link = in.Link
	plan.Measured, _ = a.samples.Last(definition.ID)
	plan.Measured.Name, plan.Measured.ID, plan.Measured.Node, plan.Measured.Container = definition.Name,
		definition.ID, a.self.Name, in.Container
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
