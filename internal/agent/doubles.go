package agent

import (
	"context"
	"errors"
	"fmt"
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

// doubles tracks the containers that run here and that other nodes claim to run, too.
type doubles struct {
	agent *Agent
	// running finds what runs here, as it was a moment ago, by inventory.Short. Error: that is not known.
	running func() (map[uint64]*engine.Definition, error)
	// unheard tells whether an engine was not heard yet since the agent was started.
	unheard func() bool
	// ended tells of a container that is not among these whether its engine has said so.
	ended func(definition engine.Definition) bool
	// moving tells which containers are just being moved.
	moving func() map[string]bool
	// runs asks the engine.
	runs func(definition engine.Definition) bool
	now  func() time.Time

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

func newDoubles(a *Agent) *doubles {
	return &doubles{
		agent:   a,
		running: func() (map[uint64]*engine.Definition, error) { return a.lists.Running(a.ctx) },
		moving:  func() map[string]bool { return a.moves.containers() },
		unheard: func() bool { return a.lists.Unheard() },
		ended:   func(definition engine.Definition) bool { return a.lists.Ended(definition) },
		runs:    a.runsHere, now: time.Now, known: map[rival]*double{},
	}
}

// here is what runs here and is not being moved. It is not known before each engine was heard once: other
// nodes would take a container that is left out for one that has ended, and end an alarm. Whoever tells
// others of its containers logs an error.
func (d *doubles) here() (claims []uint64, known bool) {
	running, err := d.running()
	known = err == nil && !d.unheard()
	moving := d.moving()
	claims = make([]uint64, 0, len(running))
	for short, definition := range running {
		if !moving[definition.ID] {
			claims = append(claims, short)
		}
	}
	return claims, known
}

// heard takes the list of containers that another node runs.
func (d *doubles) heard(node string, claims []uint64) {
	running, unknown := d.running()
	moving := d.moving()
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
		if !claimed || unknown == nil && d.ended(was.definition) {
			d.clear(one, was)
		}
	}
}

// hear takes one claim to a container that runs here. The caller has locked mu.
func (d *doubles) hear(one rival, definition engine.Definition) {
	was := d.known[one]
	if was == nil {
		was = &double{definition: definition, since: d.now()}
		d.known[one] = was
	}
	was.heard++
	if was.raised || was.heard < doubleHeard || d.now().Sub(was.since) < doubleAfter || !d.runs(definition) {
		return
	}
	was.raised = true
	d.agent.log.Error("two nodes run the same container", "container", definition.Name, "id", definition.ID,
		"node", d.agent.self.Name, "other", one.node, "remedy", doubleRemedy)
}

const doubleRemedy = "find out which copy is in use, and remove the other copy on its node (godwit rm " +
	"--force)"

// clear forgets claims that are over. The caller has locked mu.
func (d *doubles) clear(one rival, was *double) {
	delete(d.known, one)
	if was.raised {
		d.agent.log.Warn("only one node runs the container now", "container", was.definition.Name, "id",
			was.definition.ID, "other", one.node)
	}
}

// alarms lists the claims that an operator should know of. If the container has ended here since,
// its alarm is over, whether or not the other node is heard again.
func (d *doubles) alarms() []*api.Alarm {
	running, unknown := d.running()
	moving := d.moving()
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*api.Alarm
	for one, was := range d.known {
		_, runs := running[one.container]
		if !was.raised || moving[was.definition.ID] || !runs && unknown == nil && d.ended(was.definition) {
			continue
		}
		all = append(all, &api.Alarm{
			Kind: alarmDouble, Container: was.definition.ID, Name: was.definition.Name,
			SinceUnixNanoseconds: was.since.UnixNano(),
			Text:                 fmt.Sprintf("it runs on %s, too: %s", one.node, doubleRemedy),
		})
	}
	return all
}

// runsHere asks the engine whether a container runs. If the engine does not answer, the container runs as
// long as its first process does.
func (a *Agent) runsHere(definition engine.Definition) bool {
	of := a.engines.EngineFor(definition)
	if a.moves.moving(definition.ID) {
		return false
	}
	if a.lists.Hangs(of) { // greetings wait for this
		return a.lists.RunsYet(of, definition.ID)
	}
	ctx, cancel := context.WithTimeout(a.ctx, time.Second)
	defer cancel()
	one, err := of.Inspect(ctx, definition.ID)
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return a.lists.RunsYet(of, definition.ID)
	}
	return err == nil && one.State == engine.Running && !a.moves.moving(definition.ID)
}
