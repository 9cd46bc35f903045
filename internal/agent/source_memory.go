package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

// memorySource carries a container's memory to the target in rounds while it runs, and what is left
// in the freeze.
type memorySource struct {
	pages    *memory.Source
	sink     *precopy.Sender
	settings *settings
	tracker  *progress.Tracker
	throttle *throttle
	since    int       // the first round since the container was throttled last
	ahead    int       // rounds that were done while layers came, on which nothing is decided
	partly   bool      // the first round is not all the memory: the target has some
	fits     bool      // the rounds ended because what was left fitted the downtime that is wanted
	auto     *autoMode // nil: the user has named the mode
	began    time.Time // the rounds
	history  []memory.RoundStats
	sent     func() stream.Counters
	carries  func() float64       // bytes per second that get through
	files    func() time.Duration // that the files make the freeze longer
	frozen   bool
	remote   []memory.TaskMap     // pages that follow when the container was handed over, in the end
	hot      []memory.TaskMap     // of these, those that it will probably touch soon
	touched  []memory.RemoteFault // pages that it will touch first
	// by which its rounds end: that of the migration, unless its memory must not follow
	mode  migration.Mode
	split *split
	fault func(ctx context.Context, step, when string) error // nil: nothing goes wrong
}

// errNotConverging is told when the user wants that rather than a longer downtime.
var errNotConverging = errors.New("the container writes its memory faster than it can be sent")

// rounds sends the memory while the container runs, again and again what was written meanwhile,
// until the rest fits the downtime that is wanted.
func (s *source) rounds(ctx context.Context) error {
	defer s.turn.may(nil)
	if err := s.copyAhead(ctx, s.memoryAhead); err != nil {
		return err
	}
	if err := s.copyFiles(ctx); err != nil {
		return err
	}
	if err := s.openMemory(ctx); err != nil {
		return err
	}
	m := s.memory
	m.throttle.watch(ctx)
	m.auto, m.began = s.auto, time.Now()
	defer s.hurry()()
	for {
		stats, err := m.round(ctx, m.pages.Round)
		if err == nil {
			err = s.followFiles(ctx)
		}
		if err != nil {
			return err
		}
		decision := m.decide()
		m.tracker.ExpectDowntime(decision)
		m.split.left(max(decision.ExpectedDowntime-m.anyway(), 0), seconds(m.tracker.Link().RTTSeconds))
		s.agent.log.Debug("round", "migration", s.id(), "number", stats.Number, "pages", stats.Pages,
			"seconds", stats.Duration.Seconds(), "verdict", decision.Verdict.String(), "reason",
			decision.Reason)
		if why := s.turn.wanted(); why != "" {
			m.tracker.Decided(fmt.Sprintf("handed over after %d rounds, the rest of the memory is sent "+
				"afterwards: %s", m.tracker.Rounds(), why))
			return nil
		}
		if done, err := m.act(ctx, decision); done || err != nil {
			return err
		}
	}
}

// openMemory begins to look at the container's memory, if that has not begun.
func (s *source) openMemory(ctx context.Context) error {
	if s.memory != nil {
		return nil
	}
	if err := s.openPages(ctx); err != nil {
		return err
	}
	s.memory = s.newMemorySource()
	s.split.carries(s.bytesPerSecond() * 8)
	if s.move.tracker.Spec.Mode == migration.PostCopy {
		s.memory.follow()
	}
	s.turn.may(s.memory.pages)
	return nil
}

// follow has all memory follow that can, so that only the rest is sent in rounds. If both nodes
// would be needed for too long, it goes in rounds first, as in mode hybrid.
func (m *memorySource) follow() {
	why := m.split.refuses()
	if why == "" {
		m.pages.Leave()
		return
	}
	m.tracker.Decided("rounds first: " + why)
	settings := m.settings.get()
	settings.OnNoConvergence = migration.TurnHybrid
	m.settings.set(settings)
	m.mode = migration.Hybrid
}

// act does what a decision says, and tells whether the rounds are over.
func (m *memorySource) act(ctx context.Context, decision memory.Decision) (done bool, err error) {
	rounds := m.tracker.Rounds()
	switch decision.Verdict {
	case memory.Continue:
		return false, nil
	case memory.Switch:
		m.fits = true
		m.tracker.Decided(fmt.Sprintf("switchover after %d rounds: %s", rounds, decision.Reason))
		return true, nil
	case memory.NotConverging:
	}
	settings := m.settings.get()
	tooLong := m.split.refuses()
	if tooLong != "" && settings.OnNoConvergence == migration.TurnHybrid && !m.pages.Leaving() {
		return m.whole(decision, tooLong), nil
	}
	chosen, why := m.auto.instead(settings.OnNoConvergence, decision, m.following(decision),
		settings.DowntimeTarget, tooLong)
	if why != "" && !m.pages.Leaving() {
		m.tracker.Decided(why)
	}
	if chosen == migration.TurnHybrid || m.pages.Leaving() {
		m.pages.Leave()
		m.tracker.Decided(fmt.Sprintf("handed over after %d rounds, the rest of the memory is sent "+
			"afterwards: %s", rounds,
			decision.Reason))
		return true, nil
	}
	if chosen == migration.GiveUp {
		return true, fmt.Errorf("%w: %s, and --on-no-convergence is give-up; allow a longer "+
			"--downtime-target, or choose --on-no-convergence %s",
			errNotConverging, decision.Reason, migration.StopAndCopy)
	}
	if chosen == migration.Throttle && !decision.Bounded {
		slower, err := m.throttle.slower(ctx, decision.DirtyingRateBytesPerSecond, m.rawThroughput())
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return true, err
		}
		if slower {
			m.since = len(m.history)
			return false, nil
		}
	}
	m.tracker.Decided(fmt.Sprintf("%s after %d rounds: %s", migration.StopAndCopy, rounds, decision.Reason))
	return true, nil
}

// whole tells whether the rounds are over of memory that must not follow yet. They go on as those
// of a pre-copy, because fewer bytes may be left then.
func (m *memorySource) whole(decision memory.Decision, tooLong string) (done bool) {
	if m.mode == migration.Hybrid {
		m.mode = migration.PreCopy
		decision = m.decide()
	}
	if decision.Verdict == memory.Continue {
		m.tracker.Decided("more rounds: " + tooLong)
		return false
	}
	m.fits = decision.Verdict == memory.Switch
	m.tracker.Decided(fmt.Sprintf("%s after %d rounds: %s; %s", migration.StopAndCopy,
		m.tracker.Rounds(), decision.Reason, tooLong))
	return true
}

// catchUp sends what was written while the freeze was prepared. If that took long, on a busy disk
// for example, one round may not bring what is left down to what it was.
func (m *memorySource) catchUp(ctx context.Context) error {
	for range predict.CatchUpRounds {
		if _, err := m.round(ctx, m.pages.Round); err != nil {
			return err
		}
		if !m.fits || m.decide().Verdict != memory.Continue {
			break
		}
	}
	return nil
}

func (s *source) newMemorySource() *memorySource {
	var pages *memory.Source
	partly := s.staged != nil || s.reservation.GetFootprint()
	if s.staged != nil {
		pages, s.staged = s.staged.pages, nil
	} else {
		// Also in the steps that follow: this one's context has ended then.
		processes := func() ([]int, error) {
			return s.agent.engines.EngineFor(s.definition).Processes(s.agent.ctx, s.definition.ID)
		}
		pages = memory.NewSource(memory.SourceConfig{Processes: processes})
	}
	m := &memorySource{
		pages:    pages,
		partly:   partly,
		sink:     s.pages,
		settings: &s.settings, tracker: s.move.tracker, sent: s.sent, carries: s.bytesPerSecond,
		files: s.filesTakeInFreeze, mode: s.move.tracker.Spec.Mode, split: s.split,
		throttle: &throttle{engine: s.agent.engines.EngineFor(s.definition), container: s.definition.ID,
			tracker: s.move.tracker},
	}
	if s.agent.config.Faults {
		m.fault = s.move.fault
	}
	return m
}

// round does one round, and tells of it. A round while the container runs is over when its pages
// are in place.
func (m *memorySource) round(ctx context.Context,
	do func(context.Context, memory.Sink) (memory.RoundStats, error)) (memory.RoundStats, error) {
	m.sink.Fault(m.faultIn(ctx))
	start, wire, before := time.Now(), m.wireBytes(), m.sink.Stats()
	stats, err := do(ctx, m.sink)
	if err == nil && !stats.Final {
		err = m.sink.AwaitPlaced(ctx, func(missing []memory.TaskMap) error {
			_, err := m.pages.Again(ctx, m.sink, missing)
			return err
		})
	}
	if err != nil {
		return stats, err
	}
	took := m.sink.Stats().Minus(before)
	stats.Pages, stats.UnchangedPages = took.Pages-took.UnchangedPages,
		stats.UnchangedPages+took.UnchangedPages
	stats.SentBytes = took.FrameBytes
	if stats.Final {
		m.tracker.Round(stats, took, 0)
		return stats, nil
	}
	stats.SentBytes, stats.Duration = m.wireBytes()-wire, time.Since(start)
	m.history = append(m.history, stats)
	m.tracker.Precopied(m.wireBytes())
	m.tracker.Round(stats, took, m.decide().ExpectedDowntime)
	return stats, nil
}

func (m *memorySource) wireBytes() uint64 { return m.sent().Sent[precopy.KindPages].WireBytes }

// decide tells what comes after the rounds so far.
func (m *memorySource) decide() memory.Decision {
	ahead := min(m.ahead, len(m.history)-1)
	policy := predict.RoundsPolicy(m.mode, m.settings.get(), m.anyway())
	m.auto.bound(&policy, m.history[ahead:], m.wireBytes(), m.began, m.tracker.Link())
	policy.Since = max(m.since-ahead, 0)
	if patience := m.throttle.patience(); patience > 0 {
		policy.Patience = patience
	}
	d := memory.Decide(m.history[ahead:], m.carries(), policy)
	if d.Verdict != memory.Continue || policy.Patience > 0 || !m.restless(ahead) {
		return d
	}
	policy.Patience, policy.Within = 1, predict.RoundsWithin
	if sooner := memory.Decide(m.history[ahead:], m.carries(), policy); m.mayFollow(sooner) {
		return sooner
	}
	return d
}

// restlessAfter is after how many rounds one that has not helped is enough if the memory may
// follow. Of a container that writes much of its memory all the time one round finds more than
// another, and the best of ten is no better than the best of three.
const restlessAfter = 3

// restless tells whether there were so many, not counting those ahead. Two are enough if nine
// tenths of the memory were written while the first was under way, and the second took as long:
// then the third will not help, either.
func (m *memorySource) restless(ahead int) bool {
	const most = 0.9
	rounds := m.history[ahead:]
	if len(rounds) != restlessAfter-1 || m.partly || ahead > 0 {
		return len(rounds) >= restlessAfter
	}
	first, second := rounds[0], rounds[1]
	return float64(second.Pages) >= most*float64(first.Pages) &&
		second.Duration.Seconds() >= most*second.Interval.Seconds()
}

// mayFollow tells whether the automatic choice would rather have the rest follow than make more rounds.
func (m *memorySource) mayFollow(d memory.Decision) bool {
	settings := m.settings.get()
	if m.auto == nil || d.Verdict != memory.NotConverging ||
		settings.OnNoConvergence != migration.StopAndCopy {
		return false
	}
	chosen, _ := m.auto.instead(settings.OnNoConvergence, d, m.following(d), settings.DowntimeTarget,
		m.split.refuses())
	return chosen == migration.TurnHybrid
}

// following is how long a client would wait if what is left followed.
func (m *memorySource) following(d memory.Decision) time.Duration {
	frozen := m.anyway()
	left := max(0, d.ExpectedDowntime-frozen)
	return frozen + m.auto.waitOver(left, seconds(m.tracker.Link().RTTSeconds),
		d.DirtyingRateBytesPerSecond)
}

// anyway is how long the container will be frozen for all but its memory.
func (m *memorySource) anyway() time.Duration {
	return predict.Overhead + m.files() + seconds(m.tracker.Link().RTTSeconds)
}

// bytesPerSecond is how much gets through: what the link took when it was the limit, or what it was
// measured to carry if it never was. What it took beside layers may be a part of that: they are
// there before the freeze.
func (s *source) bytesPerSecond() float64 {
	bits := s.linkSeen()
	if measured := s.move.tracker.Link().BandwidthBitsPerSecond; bits == 0 || s.layers != nil {
		bits = max(bits, measured)
	}
	if limit := s.settings.get().BandwidthLimit; limit > 0 {
		bits = min(bits, limit)
	}
	return bits / 8
}

// rawThroughput is how many bytes of memory that is, if pages go on to need as much each as in the
// last round.
func (m *memorySource) rawThroughput() float64 {
	last := m.history[len(m.history)-1]
	if last.SentBytes == 0 {
		return m.carries()
	}
	return m.carries() * float64(last.Bytes()) / float64(last.SentBytes)
}

// foresee tells how much memory the container will take at the target, and refuses what its limit
// there does not allow. Once it runs there is no way back.
func (m *memorySource) foresee(limit int64) error {
	use, err := m.pages.Use()
	if err != nil {
		return err
	}
	m.tracker.MemoryGrows(use.Whole - use.Parts)
	if limit > 0 && use.Whole+use.Shared > limit && use.Whole > use.Parts {
		return refuse([]engine.Problem{{
			What: "the container's memory",
			Why: fmt.Sprintf("its processes share memory copy-on-write, of which each has its own copy "+
				"after the move: they would take %d MiB, and the limit is %d "+
				"MiB", (use.Whole+use.Shared)>>20, limit>>20),
			Remedy: "move it with --mode cold, or give it a higher limit",
		}})
	}
	return nil
}

// leaveShared has the dump leave out what the processes share, if it can; otherwise it is not carried here.
func (m *memorySource) leaveShared(departure engine.Departure) error {
	inodes, err := m.pages.Shared()
	if err != nil || len(inodes) == 0 {
		return err
	}
	left, err := departure.LeaveShared(inodes)
	if err != nil || left {
		return err
	}
	return m.pages.GiveShared("CRIU dumps it")
}

// last sends what was written last.
func (m *memorySource) last(ctx context.Context) error {
	m.frozen = true
	_, err := m.round(ctx, m.pages.Final)
	return err
}

// Faults can happen in the middle of a round: there are no steps of these names.
const (
	faultPage     = "page"      // while the container runs
	faultLastPage = "last-page" // while it is frozen
)

// faultIn makes happen in a round what a test asked for.
func (m *memorySource) faultIn(ctx context.Context) func() error {
	if m.fault == nil {
		return nil
	}
	step := faultPage
	if m.frozen {
		step = faultLastPage
	}
	return func() error { return m.fault(ctx, step, "before") }
}

// beside runs one thing beside another. What it returns is told what has become of the other, waits
// for the one and returns the error of both. If the other has failed the one is given up: it may
// take long, and a frozen container waits for it.
func beside(ctx context.Context, one func(context.Context) error) (wait func(other error) error) {
	ctx, giveUp := context.WithCancel(ctx)
	done := guard.Go(func() error { return one(ctx) })
	return func(other error) error {
		defer giveUp()
		if other == nil {
			return <-done
		}
		giveUp()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			return errors.Join(other, err)
		}
		return other
	}
}

// finish sends what is left after the dump, which changes a few pages itself, and the map of all
// that there must be.
func (s *source) finishMemory(ctx context.Context) error {
	m := s.memory
	if _, err := m.round(ctx, m.pages.Final); err != nil {
		return err
	}
	left, err := s.departure.LeftOut(s.imagesDir())
	if err != nil {
		return err
	}
	_, err = m.round(ctx, func(ctx context.Context, sink memory.Sink) (memory.RoundStats, error) {
		return m.pages.Complete(ctx, sink, left)
	})
	if err != nil {
		return err
	}
	if err := s.leaveRemote(ctx); err != nil {
		return err
	}
	maps, err := m.pages.Map()
	if err != nil {
		return err
	}
	var encoded bytes.Buffer
	if err := memory.EncodeMap(&encoded, maps); err != nil {
		return err
	}
	number, err := m.sink.Barrier(ctx) // The target waits for it before it looks at the map.
	if err != nil {
		return err
	}
	return s.section(precopy.KindMap, strconv.FormatUint(number, 10), encoded.Bytes())
}

// untrack leaves nothing of the tracking in the processes. After a crash of the agent the kernel
// has seen to that. The engine is asked only about a container that may have been slowed down: it
// may be away, and then all others need not wait for it.
func (s *source) untrack(ctx context.Context) error {
	var closed error
	if m := s.memory; m != nil {
		s.memory, s.slowed = nil, s.slowed || m.throttle.begun
		closed = m.pages.Close()
	}
	if !s.slowed {
		return closed
	}
	if err := s.agent.engines.EngineFor(s.definition).Throttle(ctx, s.definition.ID, 0); err != nil {
		return errors.Join(closed, err)
	}
	s.slowed = false
	s.move.tracker.Throttled(0, time.Now())
	return closed
}
