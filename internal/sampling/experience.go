package sampling

import (
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// Experience holds the results of past migrations, by the other node and the container. Both nodes of a
// migration learn from it, because the source sends its report. So the path in either direction is known.
type Experience struct {
	machine  *Machine
	measured func(container string) (predict.Measured, bool) // recent measurements of the container

	mu  sync.Mutex
	all map[experienced]*lesson
}

// NewExperience returns an empty experience. The machine learns from freezes that took longer than the
// container's measurements explain.
func NewExperience(machine *Machine, measured func(container string) (predict.Measured, bool)) *Experience {
	return &Experience{machine: machine, measured: measured, all: map[experienced]*lesson{}}
}

// experienced is the key of a lesson: a container and a node, or the node and any container.
type experienced struct{ node, container string }

type lesson struct {
	past map[migration.Mode][]predict.Seen
	// The latest of rounds and of post-copy pushes. One of them may have met a moment of busy processors,
	// so the median counts.
	rounds, pushes []float64
	curve          predict.Curve
	// content is the bytes sent for each byte of memory; 0: not known.
	content     float64
	stop, start float64 // seconds, in mode restart; 0: not known
	files       float64 // bytes of files that changed in a second
	filesKnown  bool
	at          time.Time
}

const (
	// mostLessons bounds the number of lessons. The oldest is dropped first.
	mostLessons = 512
	// mostSeen is how many migrations of a mode count.
	mostSeen = 5
)

// learn takes the results of a migration over a link of this bandwidth.
func (e *Experience) learn(
	node, container string, report migration.Report, parts predict.Parts, bitsPerSecond float64,
) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, of := range []experienced{{node, container}, {node, ""}} {
		known := e.all[of]
		if known == nil {
			known = &lesson{past: map[migration.Mode][]predict.Seen{}}
			e.all[of] = known
		}
		known.take(report, parts, bitsPerSecond)
	}
	for len(e.all) > mostLessons {
		var oldest experienced
		for of, known := range e.all {
			if first := e.all[oldest]; first == nil || known.at.Before(first.at) {
				oldest = of
			}
		}
		delete(e.all, oldest)
	}
}

// take adds one migration's results to the lesson.
func (l *lesson) take(report migration.Report, parts predict.Parts, bitsPerSecond float64) {
	l.at = time.Now()
	before := l.past[report.Mode]
	seen := predict.Seen{Parts: parts, RTTSeconds: report.Link.RTTSeconds}
	l.past[report.Mode] = append(slices.Clone(before[max(0, len(before)+1-mostSeen):]), seen)
	pace, rounds, pushed := predict.PaceOf(report, bitsPerSecond)
	if rounds {
		l.rounds = predict.Newest(l.rounds, pace.Rounds)
	}
	if pushed {
		l.pushes = predict.Newest(l.pushes, pace.Push)
	}
	if curve := predict.CurveOf(report); len(curve) > 0 {
		l.curve = curve
	}
	if stop, start := predict.RestartOf(report); start > 0 {
		l.stop, l.start = stop, start
	}
	if content := predict.ContentOf(report); content > 0 {
		l.content = content
	}
	if rate, known := predict.FilesOf(report); known {
		l.files, l.filesKnown = rate, true
	}
}

// pace returns the median of the observations, or else the given pace.
func (l *lesson) pace(p predict.Pace) predict.Pace {
	if len(l.rounds) > 0 {
		p.Rounds = predict.Median(l.rounds)
	}
	if len(l.pushes) > 0 {
		p.Push = predict.Median(l.pushes)
	}
	return p
}

// Of adds the experience with a path to the input for a container: from its own migrations there, and from
// other containers where there are none.
func (e *Experience) Of(node, container string, in *predict.Input) {
	e.mu.Lock()
	defer e.mu.Unlock()
	in.Past = predict.Past{}
	if others := e.all[experienced{node, ""}]; others != nil {
		for mode, all := range others.past {
			seen := predict.Middle(all)
			seen.Freeze = 0 // depends on the container
			in.Past[mode] = seen
		}
		in.Pace = others.pace(predict.Pace{})
	}
	if own := e.all[experienced{node, container}]; own != nil {
		for mode, all := range own.past {
			seen := predict.Middle(all)
			seen.Same = true
			in.Past[mode] = seen
		}
		in.Pace = own.pace(in.Pace)
		if time.Since(own.at) < keepSamples {
			in.Longer = own.curve
			in.Container = in.Container.Holding(own.content)
			in.Container.StopSeconds, in.Container.StartSeconds = own.stop, own.start
			if own.filesKnown {
				in.Container.FilesChangedPerSecond = min(in.Container.FilesChangedPerSecond, own.files)
			}
		}
	}
}

// Learn takes the results of this node's migration that has moved its container. The source's report is
// complete; the target's own is not. link is the known path to the other node.
func (e *Experience) Learn(
	report migration.Report, side migration.Side, container string, link func(node string) predict.Link,
) {
	if report.Result != migration.Moved || !slices.ContainsFunc(report.Phases, standsStill) {
		return
	}
	other := report.Target
	if side == migration.Target {
		other = report.Source
	}
	way := link(other)
	bits := way.BandwidthBitsPerSecond
	if side == migration.Target {
		bits = max(way.BackBitsPerSecond, report.Link.BandwidthBitsPerSecond)
	}
	parts := predict.PartsOf(report, bits/8)
	if side == migration.Target {
		parts.End = 0 // the migration was not over when the source sent its report
	}
	e.learnWork(report, container, parts, bits)
	e.learn(other, container, report, parts, bits)
}

// standsStill reports whether a phase is the source's part of the downtime.
func standsStill(p migration.Phase) bool {
	return p.Name == string(migration.StepFreeze) || p.Name == string(migration.StepStop) && p.Downtime
}

// learnWork learns how fast this node and the other are at the part of a freeze that every container needs.
func (e *Experience) learnWork(
	report migration.Report, container string, parts predict.Parts, bitsPerSecond float64,
) {
	measured, is := e.measured(container)
	if !is || parts.Freeze == 0 || report.Mode != migration.PreCopy && report.Mode != migration.Hybrid {
		return
	}
	state := float64(report.Bytes.Metadata) * 8 / max(bitsPerSecond, 1)
	e.machine.learn(parts.Freeze-report.Link.RTTSeconds/2-state, predict.Work(measured.Container))
}
