package dump

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/transfer/state"
)

// Engine is the engine of the container.
type Engine interface {
	Processes(ctx context.Context, container string) ([]int, error)
	PrepareDump(ctx context.Context, container string, options engine.DumpOptions) (engine.Departure, error)
	Resume(ctx context.Context, container string) error
}

// Link is the first data connection to the target; link.Link does.
type Link interface {
	// Send sends a small section, and lets nothing wait.
	Send(kind, name string, content []byte) error
	// Begin starts a section, which Close ends.
	Begin(kind, name string) (io.WriteCloser, error)
}

// Memory is what has to be done with memory in the freeze; leaving.Memory does.
type Memory interface {
	// Ahead reports whether memory leaves ahead of the execution state, and is left out of it.
	Ahead() bool
	// Quiesced is called when connections are quiesced, which took so long.
	Quiesced(ctx context.Context, took time.Duration) error
	Frozen(ctx context.Context) error
	LeaveShared(leave func(inodes []uint64) (bool, error)) error
	// Last sends what was written last.
	Last(ctx context.Context) error
}

// Packets are the container's packets; switchover.Packets does.
type Packets interface {
	Hold(ctx context.Context, settle func(context.Context) error) error
	// Quiesce begins to keep packets from the frozen container, and AwaitQuiesced waits until that is so.
	Quiesce()
	AwaitQuiesced() error
}

// Config is what a dump is made of.
type Config struct {
	Container string // its id
	Name      string // of the container
	Dir       string // in memory, for what CRIU writes
	Engine    func() Engine
	Link      Link
	Memory    Memory
	Packets   Packets
	Files     func(ctx context.Context) error // sends what has changed in files
	Keep      func()                          // begins to protect the frozen copy
	Layers    func() state.Layers             // of the image, to whose files pages may be deltas
	Figures   *progress.Tracker
	Log       *slog.Logger
}

// Dump is the dump of one container.
type Dump struct {
	config    Config
	departure engine.Departure // nil: none is prepared, or an earlier agent had one
	sender    *state.Sender
	known     state.Announced // contents that the target has, and that the execution state may refer to
}

// New makes a dump that is not prepared.
func New(config Config) *Dump { return &Dump{config: config} }

// Prepare has the engine prepare the dump. leave says to the engine by which migration the container leaves.
func (d *Dump) Prepare(ctx context.Context, leave engine.Leave) (err error) {
	departure, err := d.config.Engine().PrepareDump(ctx, d.config.Container,
		engine.DumpOptions{LeaveMemory: d.config.Memory.Ahead(), Leave: leave})
	if err != nil {
		return err
	}
	d.departure = departure
	return nil
}

// Close ends what waits for the dump. After a crash of the agent only the engine knows what there is.
func (d *Dump) Close(ctx context.Context) error {
	if d.departure != nil {
		return d.departure.Close()
	}
	return d.config.Engine().Resume(ctx, d.config.Container)
}

// Hold holds packets for the container, those that open connections first, so that no connection is half open
// at the freeze. That may take a round trip, or more.
func (d *Dump) Hold(ctx context.Context) error { return d.config.Packets.Hold(ctx, d.settle) }

// settle waits until no TCP handshake or close is in flight.
func (d *Dump) settle(ctx context.Context) error {
	began := time.Now()
	if err := d.departure.Settle(ctx); err != nil {
		return err
	}
	return d.config.Memory.Quiesced(ctx, time.Since(began))
}

// Freeze freezes the container.
func (d *Dump) Freeze(ctx context.Context) error {
	at, err := d.departure.Freeze(ctx)
	for errors.Is(err, engine.ErrUnsettled) {
		if err = d.Hold(ctx); err == nil {
			at, err = d.departure.Freeze(ctx)
		}
	}
	if err != nil {
		return err
	}
	d.config.Figures.Frozen(at)
	if err := d.config.Memory.Frozen(ctx); err != nil {
		return err
	}
	d.config.Packets.Quiesce()
	return nil
}

// Write writes the execution state into memory, and sends what only grows while it does.
func (d *Dump) Write(ctx context.Context) error {
	if err := d.config.Memory.LeaveShared(d.departure.LeaveShared); err != nil {
		return err
	}
	d.sender = state.NewSender(d.config.Dir,
		func(name string) (io.WriteCloser, error) { return d.config.Link.Begin(KindState, name) })
	d.sender.Refer(d.known.Known(),
		func(name string) (io.WriteCloser, error) { return d.config.Link.Begin(KindRefers, name) })
	complete := make(chan struct{})
	followed := guard.Go(func() error { return d.sender.Follow(ctx, complete) })
	copied := guard.Beside(ctx, d.config.Files)
	sent := guard.Beside(ctx, d.config.Memory.Last)
	// What a socket sends or gets after CRIU has looked at it is unknown to its copy, which may
	// then take what its peer says for invalid.
	err := d.config.Packets.AwaitQuiesced()
	if err == nil {
		err = d.departure.Dump(ctx, d.config.Dir)
	}
	if err == nil {
		d.config.Keep()
	}
	close(complete)
	err = copied(sent(err))
	return errors.Join(err, <-followed)
}

// Rest sends what Write has not sent of the state, and returns how large each file is.
func (d *Dump) Rest() (map[string]int64, error) { return d.sender.Rest() }

// LeftOut tells which memory the dump has left out.
func (d *Dump) LeftOut() (memory.Left, error) { return d.departure.LeftOut(d.config.Dir) }

// Touched tells which pages are touched first when the container is restored.
func (d *Dump) Touched() ([]memory.RemoteFault, error) { return d.departure.Touched(d.config.Dir) }
