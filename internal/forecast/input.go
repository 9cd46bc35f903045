package forecast

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

// input is what a prediction is made from: what is known now, with nothing watched.
func (f *Forecaster) input(ctx context.Context, definition engine.Definition, node identity.Node,
	demands predict.Demands) (predict.Input, error) {
	in := predict.Input{
		Link: f.config.Links.WayTo(node.Name), Demands: demands,
		// the other is taken to be like this one
		Source: f.config.Speed(), Target: f.config.Speed(),
	}
	container, err := f.config.Engines.Inspect(ctx, definition.ID)
	if err != nil {
		return in, err
	}
	seen, err := f.config.Samples.Look(ctx, container.Definition)
	if err != nil {
		return in, err
	}
	if _, fresh := f.config.Samples.Known(definition.ID, 0, autoAge); !fresh {
		seen.Curve = nil // of then; all else was just looked at
	}
	in.Container = seen.Container
	in.Source.CompressBytesPerSec = seen.CompressBytesPerSecond
	f.config.Past.Of(node.Name, definition.ID, &in)
	if in.Container.StartSeconds == 0 && definition.Health == nil {
		if ports, err := f.config.Engines.EngineFor(definition).Ports(ctx, definition.ID); err == nil &&
			len(ports) == 0 {
			in.Container.StartSeconds = engine.SettledAfter.Seconds() + startWork
		}
	}
	in.Container.FileTreeBytes, in.Container.FileTreeEntries, err = f.filesOf(ctx, definition)
	if age := f.config.CopyAge(definition.ID, node.Name); age > 0 {
		in.Container.StagedAge = max(age.Seconds(), shortestWatch.Seconds())
	}
	return in, err
}

// filesOf is how much there is in the directories that move. What cannot be looked at is left out:
// the migration refuses it, and says better why.
func (f *Forecaster) filesOf(ctx context.Context,
	definition engine.Definition) (bytes, entries int64, err error) {
	trees, err := f.config.Trees(ctx, definition)
	if err != nil {
		return 0, 0, err
	}
	defer files.LetGo(trees)
	for _, tree := range trees {
		if size, err := files.TreeSize(ctx, tree); err == nil {
			bytes, entries = bytes+size.Bytes, entries+size.Entries
		}
	}
	return bytes, entries, ctx.Err()
}

// watchTime is for how long to watch what a container writes before its mode is chosen.
func (f *Forecaster) watchTime(in predict.Input) time.Duration {
	bits := in.Link.BandwidthBitsPerSecond
	if bits == 0 {
		bits = fastLink
	}
	first := seconds(float64(in.Container.PrivateBytes+in.Container.SharedBytes) * 8 / bits)
	return min(max(first/watchShare, shortestWatch), longestWatch)
}

// watchFor measures what a container writes and holds.
func (f *Forecaster) watchFor(ctx context.Context, in *predict.Input, definition engine.Definition,
	window time.Duration) {
	for _, w := range predict.Windows() {
		if seconds(w) <= window || in.Container.Curve.Longest() == 0 {
			measured := f.config.Samples.Measure(ctx, definition, seconds(w), autoAge)
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
