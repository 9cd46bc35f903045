package staging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/wire/stream"
)

// maxStaged bounds the staged copies that one node may have here.
const maxStaged = 32

// Copies are the copies that other nodes have staged here, of containers that may come.
type Copies struct {
	ctx          context.Context //nolint:containedctx // The life of the node: when it ends, no copy stays.
	node         string
	runDir       string
	patience     time.Duration
	target       Target
	reservations Reservations
	residuals    *residual.Copies
	log          *slog.Logger

	mu  sync.Mutex
	all map[*Copy]bool
}

// CopiesConfig is what staged copies need of the node where they are.
type CopiesConfig struct {
	Node         string        // its name
	RunDir       string        // where file systems in memory are mounted for a moment
	Patience     time.Duration // how long another node may be silent
	Target       Target
	Reservations Reservations
	Residuals    *residual.Copies // idle copies are kept there
	Log          *slog.Logger
}

// Target is the node to which containers may come.
type Target interface {
	// Has reports whether a container is here.
	Has(container string) bool
	// Free is the memory that containers can have.
	Free() int64
	// Examine lists what stands against a container coming from a node.
	Examine(ctx context.Context, from string, of engine.Definition,
		offer *api.Offer) ([]migration.Problem, error)
	// Missing lists what of its image is not here. Where there are problems it need not be known.
	Missing(ctx context.Context, of engine.Definition, problems []migration.Problem) (*api.Reservation, error)
	// Migration finds a migration that brings a container from a node, and gives it a copy's pages by take.
	Migration(id, from string, of engine.Definition) (take func(*memory.Store) error, err error)
}

// Reservations are of memory. See reserve.Reservations.
type Reservations interface {
	Fill(by, node string, bytes, free int64)
	Release(by string)
}

// NewCopies has no copies yet. When ctx has ended, copies do not become idle.
func NewCopies(ctx context.Context, c CopiesConfig) *Copies {
	return &Copies{
		ctx: ctx, node: c.Node, runDir: c.RunDir, patience: c.Patience, target: c.Target,
		reservations: c.Reservations, residuals: c.Residuals, log: c.Log, all: map[*Copy]bool{},
	}
}

// Copy is a copy that another node stages here, for as long as its connection stands.
type Copy struct {
	owner      *Copies
	id, from   string
	definition engine.Definition
	limit      int64 // of its pages
	needs      int64 // the memory that a migration will need
	most       uint64
	residual   *residual.Copy // nil: the container left none here
	data       *stream.Session
	started    time.Time
	done       chan struct{} // closed when the copy is idle or gone

	mu     sync.Mutex
	keep   time.Duration // for how long the idle copy stays after the connection has ended; 0: not at all
	pages  *memory.Store // nil: not yet, or a migration has it
	rounds int
	fresh  time.Time
	next   time.Time // fresh after the round under way
}

var errCopyRemoved = errors.New("it was removed by a user of that node")

func (c *Copies) add(added *Copy) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := 0
	for have := range c.all {
		if have.from == added.from {
			count++
		}
	}
	if count >= maxStaged {
		return fmt.Errorf("%w: %s has staged %d containers here already", engine.ErrBusy, added.from, count)
	}
	c.all[added] = true
	return nil
}

func (c *Copies) remove(one *Copy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, one)
}

// List has all copies, in the order in which they began.
func (c *Copies) List() []*Copy {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*Copy, 0, len(c.all))
	for one := range c.all {
		list = append(list, one)
	}
	slices.SortFunc(list, func(x, y *Copy) int { return x.started.Compare(y.started) })
	return list
}

// Of returns the size of the staged copies of a container, and the reservations that were made for them.
func (c *Copies) Of(container string) (bytes int64, reserved []string) {
	for _, one := range c.List() {
		if one.definition.ID == container {
			bytes += one.bytes()
			reserved = append(reserved, one.id)
		}
	}
	return bytes, reserved
}

func (c *Copy) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pages == nil {
		return 0
	}
	return c.pages.Bytes()
}

// Describe tells of the copy.
func (c *Copy) Describe() migration.Stage {
	bytes := c.bytes()
	c.mu.Lock()
	defer c.mu.Unlock()
	told := migration.Stage{
		ID: c.id, Kind: migration.StagedCopy, Container: c.definition.Name, ContainerID: c.definition.ID,
		Source: c.from,
		Target: c.owner.node, State: migration.StageLayers, Started: c.started, Fresh: c.fresh,
		Rounds:      c.rounds,
		MemoryBytes: bytes, SentBytes: int64(c.data.Counters().ReceivedWireBytes),
	}
	switch {
	case c.rounds > 0:
		told.State = migration.StageReady
	case c.pages != nil:
		told.State = migration.StageMemory
	}
	return told
}

// drop ends the copy, leaves no idle copy, and tells the other node why.
func (c *Copy) drop(why error) {
	c.mu.Lock()
	c.keep = 0
	c.mu.Unlock()
	_ = c.data.Abort(api.Plain(why))
}

// Remove ends the copy that a node has staged here of a container that a user means. It reports whether there
// was one.
func (c *Copies) Remove(reference, node string) bool {
	for _, one := range c.List() {
		if one.from == node && migration.Called(reference, one.definition.ID, one.definition.Name) {
			one.drop(errCopyRemoved)
			return true
		}
	}
	return false
}

// The least shares are of all memory: when less than that is available, residual copies go first, and then
// copies that other nodes have staged here.
const (
	residualLeastShare = 10
	stagedLeastShare   = 20
)

// Relieve gives up a residual copy or, if there is none, a staged copy, when memory is short: one at a time.
func (c *Copies) Relieve() {
	if len(c.residuals.List()) == 0 && len(c.List()) == 0 {
		return
	}
	machine, err := kernel.ReadMachine()
	if err != nil {
		return // nothing is known to be short
	}
	available, total := machine.MemoryAvailableBytes, machine.MemoryTotalBytes
	if available < total/residualLeastShare && c.residuals.DropOldest() {
		c.log.Info("residual memory copy of a container given up: memory is short", "available", available)
		return
	}
	if list := c.List(); len(list) > 0 && available < total/stagedLeastShare {
		list[0].drop(errCopyShort)
	}
}

var errCopyShort = errors.New("that node is short of memory")
