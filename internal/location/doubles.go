package location

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
)

// A migration must never leave one container running on two nodes. If that happens all the same,
// because an operator decided wrongly or a state was restored from a backup, both nodes raise an
// alarm. Each node tells the others which containers run there. It leaves out containers that are
// just being moved: of these there may be two copies, one of them frozen, and their states change
// by the moment.

const (
	// doubleAfter is how long, and doubleHeard how often, another node has to claim a container
	// that runs here. What nodes know of each other is a few seconds old, and a container may move
	// to and fro meanwhile.
	doubleAfter = 3 * cluster.HelloEvery
	doubleHeard = 4
)

// AlarmDouble is the kind of the alarms: another node says that it runs the container, too.
const AlarmDouble = "double"

// Doubles tracks the containers that run here and that other nodes claim to run, too.
type Doubles struct {
	ctx    context.Context //nolint:containedctx // The life of the node: greetings have none of their own.
	config DoublesConfig
	now    func() time.Time

	mu    sync.Mutex
	known map[rival]*double
}

// rival is one node's claim to one container.
type rival struct {
	node      string
	container uint64
}

// double is a container that runs here, and at another node as well.
type double struct {
	definition engine.Definition
	since      time.Time
	heard      int
	raised     bool
}

// NewDoubles has heard of none. ctx is the life of the node.
func NewDoubles(ctx context.Context, config DoublesConfig) *Doubles {
	return &Doubles{ctx: ctx, config: config, now: time.Now, known: map[rival]*double{}}
}

// DoublesConfig is the configuration of Doubles.
type DoublesConfig struct {
	Self    string // name of this node
	Here    Running
	Engines *engine.Set
	Moves   Moves
	Log     *slog.Logger
}

// Running is what runs on this node, as it was a moment ago. See inventory.Lists.
type Running interface {
	// Running are these containers, by inventory.Short. Error: they are not known.
	Running(ctx context.Context) (map[uint64]*engine.Definition, error)
	// Unheard reports whether an engine was not heard yet since the agent was started.
	Unheard() bool
	// Ended reports of a container that is not among these whether its engine has said so.
	Ended(definition engine.Definition) bool
	// Hangs reports whether an engine does not answer.
	Hangs(of engine.Engine) bool
	// RunsYet reports whether the first process still runs of a container that ran before that.
	RunsYet(of engine.Engine, container string) bool
}

// Claims are the containers that run here and are not being moved. They are not known before each engine was
// heard once: other nodes would take a container that is left out for one that has ended, and end an alarm.
// Whoever tells others of its containers logs an error.
func (d *Doubles) Claims() (claims []uint64, known bool) {
	running, err := d.config.Here.Running(d.ctx)
	known = err == nil && !d.config.Here.Unheard()
	moving := d.config.Moves.AllMoving()
	claims = make([]uint64, 0, len(running))
	for short, definition := range running {
		if !moving[definition.ID] {
			claims = append(claims, short)
		}
	}
	return claims, known
}

// HearClaims takes the list of containers that another node runs.
func (d *Doubles) HearClaims(node string, claims []uint64) {
	running, unknown := d.config.Here.Running(d.ctx)
	moving := d.config.Moves.AllMoving()
	d.mu.Lock()
	defer d.mu.Unlock()
	both := map[rival]bool{}
	for _, short := range claims {
		if definition, is := running[short]; is && !moving[definition.ID] {
			one := rival{node, short}
			both[one] = true
			d.hear(one, *definition)
		}
	}
	for one, was := range d.known {
		if one.node != node || both[one] {
			continue
		}
		claimed := slices.Contains(claims, one.container) && !moving[was.definition.ID]
		// an engine that does not answer ends no alarm
		if !claimed || unknown == nil && d.config.Here.Ended(was.definition) {
			d.clear(one, was)
		}
	}
}

// hear takes one claim to a container that runs here. The caller has locked mu.
func (d *Doubles) hear(one rival, definition engine.Definition) {
	was := d.known[one]
	if was == nil {
		was = &double{definition: definition, since: d.now()}
		d.known[one] = was
	}
	was.heard++
	if was.raised || was.heard < doubleHeard || d.now().Sub(was.since) < doubleAfter ||
		!d.runsHere(definition) {
		return
	}
	was.raised = true
	d.config.Log.Error("two nodes run the same container", "container", definition.Name, "id", definition.ID,
		"node", d.config.Self, "other", one.node, "remedy", doubleRemedy)
}

const doubleRemedy = "find out which copy is in use, and remove the other copy on its node (godwit rm " +
	"--force)"

// clear forgets claims that are over. The caller has locked mu.
func (d *Doubles) clear(one rival, was *double) {
	delete(d.known, one)
	if was.raised {
		d.config.Log.Warn("only one node runs the container now", "container", was.definition.Name, "id",
			was.definition.ID, "other", one.node)
	}
}

// Alarms lists the claims that an operator should know of. If the container has ended here since,
// its alarm is over, whether or not the other node is heard again.
func (d *Doubles) Alarms() []*api.Alarm {
	running, unknown := d.config.Here.Running(d.ctx)
	moving := d.config.Moves.AllMoving()
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*api.Alarm
	for one, was := range d.known {
		_, runs := running[one.container]
		ended := func() bool { return !runs && unknown == nil && d.config.Here.Ended(was.definition) }
		if !was.raised || moving[was.definition.ID] || ended() {
			continue
		}
		all = append(all, &api.Alarm{
			Kind: AlarmDouble, Container: was.definition.ID, Name: was.definition.Name,
			SinceUnixNanoseconds: was.since.UnixNano(),
			Text:                 fmt.Sprintf("it runs on %s, too: %s", one.node, doubleRemedy),
		})
	}
	return all
}

// runsHere asks the engine whether a container runs. If the engine does not answer, the container runs as
// long as its first process does.
func (d *Doubles) runsHere(definition engine.Definition) bool {
	of := d.config.Engines.EngineFor(definition)
	if d.config.Moves.Moving(definition.ID) {
		return false
	}
	if d.config.Here.Hangs(of) { // greetings wait for this
		return d.config.Here.RunsYet(of, definition.ID)
	}
	ctx, cancel := context.WithTimeout(d.ctx, time.Second)
	defer cancel()
	one, err := of.Inspect(ctx, definition.ID)
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return d.config.Here.RunsYet(of, definition.ID)
	}
	return err == nil && one.State == engine.Running && !d.config.Moves.Moving(definition.ID)
}
