package agent

import (
	"context"
	"errors"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
)

// rounds sends the memory while the container runs, after its files.
func (s *source) rounds(ctx context.Context) error {
	defer s.turn.May(nil)
	if err := s.copyAhead(ctx, s.memoryAhead); err != nil {
		return err
	}
	if err := s.files.Copy(ctx); err != nil {
		return err
	}
	if err := s.openMemory(ctx); err != nil {
		return err
	}
	return s.memory.Run(ctx, s.files.Follow)
}

// openMemory begins to look at the container's memory, if that has not begun.
func (s *source) openMemory(ctx context.Context) error {
	if s.memory != nil {
		return nil
	}
	if err := s.openPages(ctx); err != nil {
		return err
	}
	s.split.Carries(s.bytesPerSecond() * 8)
	partly := s.staged != nil || s.reservation.GetFootprint()
	pages := s.trackedPages()
	config := rounds.Config{
		Pages: pages, Sender: s.pages, Partly: partly, Settings: &s.settings, Figures: s.move.tracker,
		Link: pageLink{s}, Processor: processor{s.agent.engines.EngineFor(s.definition), s.definition.ID},
		Files: s.files.TakeInFreeze, Split: s.split, Turn: &s.turn, Mode: s.move.tracker.Spec.Mode,
		Log: s.agent.log.With("migration", s.id(), "container", s.definition.Name),
	}
	if s.auto != nil {
		config.Auto = &s.auto.Auto
	}
	if s.agent.config.Faults {
		config.Fault = s.move.fault
	}
	s.memory = rounds.New(config)
	s.turn.May(pages)
	return nil
}

// trackedPages are those of the copy that was staged, or of a tracker that begins now.
func (s *source) trackedPages() *memory.Source {
	if s.staged != nil {
		pages := s.staged.Pages
		s.staged = nil
		return pages
	}
	// Also in the steps that follow: this one's context has ended then.
	processes := func() ([]int, error) {
		return s.agent.engines.EngineFor(s.definition).Processes(s.agent.ctx, s.definition.ID)
	}
	return memory.NewSource(memory.SourceConfig{Processes: processes})
}

// pageLink is the way of pages to the target.
type pageLink struct{ *source }

// PageBytes implements rounds.Link.
func (l pageLink) PageBytes() uint64 { return l.sent().Sent[precopy.KindPages].WireBytes }

// BytesPerSecond implements rounds.Link.
func (l pageLink) BytesPerSecond() float64 { return l.bytesPerSecond() }

// processor is the processor time of a container.
type processor struct {
	engine    engine.Engine
	container string
}

// CPUTime implements rounds.Processor.
func (p processor) CPUTime(ctx context.Context) (time.Duration, error) {
	return p.engine.CPUTime(ctx, p.container)
}

// Throttle implements rounds.Processor.
func (p processor) Throttle(ctx context.Context, cpus float64) error {
	return p.engine.Throttle(ctx, p.container, cpus)
}

// dumped is what CRIU has written in the dump.
type dumped struct {
	departure engine.Departure
	images    string
}

// LeftOut implements rounds.Dump.
func (d dumped) LeftOut() (memory.Left, error) { return d.departure.LeftOut(d.images) }

// Touched implements rounds.Dump.
func (d dumped) Touched() ([]memory.RemoteFault, error) { return d.departure.Touched(d.images) }

// bytesPerSecond is how much gets through: what the link took when it was the limit, or what it was
// measured to carry if it never was. What it took beside layers may be a part of that: they are
// there before the freeze.
func (s *source) bytesPerSecond() float64 {
	bits := s.linkSeen()
	if measured := s.move.tracker.Link().BandwidthBitsPerSecond; bits == 0 || s.layers != nil {
		bits = max(bits, measured)
	}
	if limit := s.settings.Get().BandwidthLimit; limit > 0 {
		bits = min(bits, limit)
	}
	return bits / 8
}

// untrack leaves nothing of the tracking in the processes. After a crash of the agent the kernel
// has seen to that. The engine is asked only about a container that may have been slowed down: it
// may be away, and then all others need not wait for it.
func (s *source) untrack(ctx context.Context) error {
	var closed error
	if m := s.memory; m != nil {
		s.memory, s.slowed = nil, s.slowed || m.Slowed()
		closed = m.Close()
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
