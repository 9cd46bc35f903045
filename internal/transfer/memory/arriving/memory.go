package arriving

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Engine is the engine of the container.
type Engine interface {
	// Memory reports how far the memory of a container that runs is filled.
	Memory(ctx context.Context, container string) (memory.FillReport, error)
	// RemotePages connects to the process that fills the memory, or fails with engine.ErrNotFilling.
	RemotePages(ctx context.Context, container string) (memory.RemotePages, error)
}

// Filler fills the memory of the container when it is restored; engine.Arrival does.
type Filler interface {
	FillFrom(ctx context.Context, pages *memory.Store) error
}

// Migration is the migration that brings the container.
type Migration interface {
	Record() migration.Record
	// Arrives reports whether there is an arrival: after a crash of the agent there is none.
	Arrives() bool
	// MovedOn reports whether another migration moves the container, or has.
	MovedOn() bool
}

// Link is the target's end of the first data connection; link.Target does.
type Link interface {
	Data() *stream.Session
	// Answering calls write while nobody else tells the source anything.
	Answering(write func(*stream.Session) error) error
}

// Config is what the memory of a migration is made of.
type Config struct {
	Spec      migration.Spec
	Offered   int64 // bytes of memory that the source has announced
	Limit     int64 // of the memory that the source can fill
	Engine    func() Engine
	Migration Migration
	Link      Link
	Residuals *residual.Copies
	Figures   *progress.Tracker
	Silence   time.Duration          // for how long nothing may come from the source
	Reaches   func(node string) bool // whether another node answers
	Ended     <-chan struct{}        // closed when the migration has ended
	Log       *slog.Logger
}

// Memory is the memory of a container that arrives.
type Memory struct {
	config   Config
	received *precopy.Receiver
	push     *push.Receiver
	filling  chan struct{} // closed when what fills the memory is there

	mapped bool   // the map of the pages has come
	frame  []byte // a buffer of the one who takes sections

	mu       sync.Mutex
	residual *residual.Copy // what the container left here when it went; nil: nothing
}

// New makes the memory of a container of which nothing has come. ctx is the life of the node.
func New(ctx context.Context, config Config) *Memory {
	m := &Memory{config: config, received: precopy.NewReceiver(), filling: make(chan struct{})}
	m.push = push.NewReceiver(push.ReceiverConfig{
		Container: container{m}, Received: m.received, Name: config.Spec.Name, Figures: config.Figures,
		Now:     func() (memory.FillReport, error) { return m.report(ctx) },
		Silence: config.Silence,
	})
	return m
}

// UseResidual takes what the container left here when it went, for as long as the migration may refer to it.
// Not there: nothing is here, or memory does not come ahead.
func (m *Memory) UseResidual() (there bool) {
	if !m.config.Spec.Mode.MemoryAhead() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.residual = m.config.Residuals.Use(m.config.Spec.Container)
	return m.residual != nil
}

// Open makes room for memory that comes ahead of the freeze. What was staged here has been taken over by
// then.
// late: what fills the memory is there only when the container is started; see Fill.
func (m *Memory) Open(ctx context.Context, filler Filler, late bool) error {
	if !m.config.Spec.Mode.MemoryAhead() {
		return nil
	}
	pages, err := m.received.Open(m.config.Limit)
	if err != nil {
		return err
	}
	if err := filler.FillFrom(ctx, pages); err != nil {
		return err
	}
	if !late {
		m.Fill()
	}
	return nil
}

// Fill says that what fills the memory is there.
func (m *Memory) Fill() { close(m.filling) }

// TakeStaged takes over the pages of the copy that was staged here, as long as there are no others.
func (m *Memory) TakeStaged(pages *memory.Store) error {
	if !m.config.Spec.Mode.MemoryAhead() || !m.received.TakeOver(pages) {
		return fmt.Errorf("migration %s can no longer take over a staged copy", m.config.Spec.ID)
	}
	return nil
}

// Attach receives pages over one more connection, until it ends.
func (m *Memory) Attach(ctx context.Context, data *stream.Session) error {
	return m.received.Attach(ctx, data, m.config.Ended)
}

// Take takes a section of the first data connection. Not taken: the section is of something else, and nothing
// was read.
func (m *Memory) Take(ctx context.Context, section stream.Section) (taken bool, err error) {
	switch section.Kind {
	case precopy.KindKey:
		err = m.takeKey(section)
	case precopy.KindPages:
		m.frame, err = m.received.Frame(section, m.frame)
	case precopy.KindRemote:
		err = m.received.Remote(section)
	case precopy.KindMap:
		m.mapped, m.frame = true, nil
		err = m.received.Map(ctx, section)
	default:
		return false, nil
	}
	return true, err
}

// takeKey begins to receive pages.
func (m *Memory) takeKey(section stream.Section) error {
	m.mu.Lock()
	used := m.residual
	m.mu.Unlock()
	incoming := precopy.Incoming{Data: m.config.Link.Data(), Announced: used != nil,
		Most: precopy.MaxClaims(m.config.Offered)}
	incoming.Barrier = func(number uint64, missing []memory.TaskMap) error {
		return m.config.Link.Answering(func(data *stream.Session) error {
			return precopy.TellPlaced(data, number, missing)
		})
	}
	if used != nil {
		incoming.Residual = used.Pages()
	}
	return m.received.Key(section, incoming)
}

// Whole reports whether all of the memory is here that comes before the restore.
func (m *Memory) Whole() bool { return m.mapped || !m.received.Ahead() }

// Discard gives back the memory of an arrival that never ran.
func (m *Memory) Discard() error { return m.received.Discard() }

// Close ends all use of memory here that was not the container's in the end. moved: the container runs here.
func (m *Memory) Close(moved bool) {
	m.push.Close()
	if err := m.received.CloseBefore(); err != nil {
		m.config.Log.Warn("cannot release the memory of remote pages", "container", m.config.Spec.Name,
			"error", err)
	}
	if err := m.received.CloseStaged(); err != nil {
		m.config.Log.Warn("cannot release a copy of memory", "container", m.config.Spec.Name, "error", err)
	}
	m.releaseResidual(moved)
}

// releaseResidual gives up what the container left here, if it runs here again.
func (m *Memory) releaseResidual(moved bool) {
	m.mu.Lock()
	used := m.residual
	m.residual = nil
	m.mu.Unlock()
	used.Release()
	if moved {
		m.config.Residuals.Drop(m.config.Spec.Container)
	}
}
