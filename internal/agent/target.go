package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// The sections of a migration's data connection, in the order in which they come.
const (
	kindImage  = "image"  // content: the image's configuration
	kindName   = "name"   // name: a name of the image
	kindLayer  = "layer"  // name: DiffID
	kindStaged = "staged" // nothing more comes before the freeze
	kindState  = "state"  // name: FILE@OFFSET
	kindTrees  = "trees"
	kindFinal  = "final" // content: finalMarker
)

// What a data connection is for.
const (
	purposeMigration = "migration"
	purposeMeasure   = "measure"
)

const (
	maxImageConfig = 4 << 20
	maxImageNames  = 32
)

// finalMarker says that all has been sent, and how much that was.
type finalMarker struct {
	State map[string]int64 `json:"state"`
}

// target does the steps of the node that gets.
type target struct {
	agent      *Agent
	move       *move
	definition engine.Definition
	offer      *api.Offer // nil after a crash of the agent
	control    control

	once     sync.Once
	data     *stream.Session
	staged   chan struct{} // closed when staging has ended, with stageErr
	stageErr error

	mu          sync.Mutex
	reservation *api.Reservation
	arrival     engine.Arrival
	names       int    // of the image that have come
	letGo       func() // of the image store, whose layers are to be here from the reserve until they are mounted
}

func (t *target) do(ctx context.Context, step migration.StepName) (time.Time, error) {
	switch step {
	case migration.StepReserve:
		return time.Time{}, t.reserve(ctx)
	case migration.StepArrive:
		return time.Time{}, t.arrive(ctx)
	case migration.StepReceive:
		return time.Time{}, t.receive(ctx)
	case migration.StepRestore:
		return t.restore(ctx)
	case migration.StepSettle:
		return time.Time{}, t.settle(ctx)
	}
	return time.Time{}, fmt.Errorf("the target has no step %s", step)
}

func (t *target) undo(ctx context.Context, step migration.StepName) error {
	switch step {
	case migration.UndoReserve:
		t.releaseImages()
		t.agent.reservations.release(t.move.tracker.spec.ID)
		return nil
	case migration.UndoArrive:
		return t.discard(ctx)
	case migration.UndoRestore:
		return t.fence(ctx)
	}
	return fmt.Errorf("the target has no undo %s", step)
}

func (t *target) ask(context.Context, bool) (migration.Message, error) {
	return migration.Message{}, errors.New("the target knows the outcome itself")
}

func (t *target) check(ctx context.Context) (engine.Outcome, time.Time, error) {
	outcome, err := t.agent.engine.Arrived(ctx, t.definition.ID)
	if err != nil || outcome == engine.NeverRan {
		return outcome, time.Time{}, err
	}
	return outcome, time.Time{}, t.agent.routeHere(ctx, t.definition)
}

// reserve refuses what cannot work, before anything moves.
func (t *target) reserve(ctx context.Context) error {
	if err := t.agent.reservations.take(t.move.tracker.spec.ID, t.definition); err != nil {
		return err
	}
	t.agent.reservations.fill(t.move.tracker.spec.ID, copiesAtTarget*t.offer.MemoryBytes)
	if err := t.holdImages(); err != nil {
		return err
	}
	problems, err := t.agent.examineOffer(ctx, t.definition, t.offer)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return &problemsError{problems}
	}
	reservation := t.agent.missing(t.definition)
	t.mu.Lock()
	t.reservation = reservation
	t.mu.Unlock()
	return nil
}

func (t *target) holdImages() error {
	letGo, err := t.agent.images.Hold()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.letGo = letGo
	return nil
}

func (t *target) releaseImages() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.letGo != nil {
		t.letGo()
		t.letGo = nil
	}
}

// arrive makes all that can stand ready before the state is here.
func (t *target) arrive(ctx context.Context) error {
	if err := waitFor(ctx, t.staged); err != nil {
		return err
	}
	if t.stageErr != nil {
		return t.stageErr
	}
	netns, err := t.agent.attach(ctx, t.definition)
	if err != nil {
		return err
	}
	arrival, err := t.agent.engine.Arrive(ctx, t.definition, netns)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.arrival = arrival
	t.mu.Unlock()
	t.releaseImages()
	return nil
}

// restore makes the processes. The last moment in which it can be stopped is when all sockets exist and nothing runs.
func (t *target) restore(ctx context.Context) (time.Time, error) {
	return t.arrival.Restore(ctx, func() error {
		if err := t.move.mayResume(ctx); err != nil {
			return err
		}
		return t.agent.network.Route(t.definition.Network.Address, network.Local(t.definition.ID))
	})
}

// settle makes an ordinary container of what arrived. An agent that was killed after the resume may not have come to
// that. What has become of the container since does not matter here.
func (t *target) settle(ctx context.Context) error {
	_, err := t.agent.engine.Arrived(ctx, t.definition.ID)
	return err
}

// discard removes an arrival that never ran, and turns its address to the source again.
func (t *target) discard(ctx context.Context) error {
	t.mu.Lock()
	arrival := t.arrival
	t.arrival = nil
	t.mu.Unlock()
	var failed error
	if arrival != nil {
		failed = arrival.Close()
	}
	failed = errors.Join(failed, t.agent.engine.Discard(ctx, t.definition.ID))
	return errors.Join(failed, t.leaveAddress(ctx))
}

// leaveAddress gives up the address here: it is at the source. If another container here has it, the source claims what
// is not its own, and nothing changes.
func (t *target) leaveAddress(ctx context.Context) error {
	address, source := t.definition.Network.Address, t.move.tracker.spec.Source
	err := t.agent.network.Detach(t.definition.ID)
	other, listed := t.agent.holder(ctx, address)
	if listed != nil || other.ID != "" && other.ID != t.definition.ID {
		return errors.Join(err, listed)
	}
	if t.agent.atHome(address) {
		return errors.Join(err, t.agent.network.Route(address, network.Via(source)))
	}
	return errors.Join(err, t.agent.network.Unroute(address))
}

// fence kills and removes the copy that runs here, because an operator decided that it runs at the source.
func (t *target) fence(ctx context.Context) error {
	// Its connections go on at the source: nobody may hear that they end here.
	if err := t.agent.network.Silence(t.definition.Network.Address); err != nil {
		return err
	}
	err := t.agent.engine.Remove(ctx, t.definition.ID, true)
	if errors.Is(err, engine.ErrNotFound) {
		err = nil
	}
	return errors.Join(err, t.leaveAddress(ctx))
}

// send hands a message to the session, with what belongs to it.
func (t *target) send(message migration.Message) {
	t.control.send(message, func(envelope *api.Envelope) {
		if message.Kind == migration.KindReserved {
			t.mu.Lock()
			envelope.Reservation = t.reservation
			t.mu.Unlock()
		}
	})
}

func (t *target) ended(result migration.Finish) {
	t.releaseImages()
	t.agent.reservations.release(t.move.tracker.spec.ID)
	t.agent.migrationEnded(t.move, result)
}

// hears takes what the source says over a session.
func (t *target) hears(envelope *api.Envelope) {
	if envelope.Message != nil {
		t.agent.deliver(t.move, envelope.Message)
	}
}

func newTarget(agent *Agent, m *move, definition engine.Definition, node identity.Node, offer *api.Offer) *target {
	return &target{
		agent: agent, move: m, definition: definition, offer: offer, staged: make(chan struct{}),
		control: newControl(agent, m, node),
	}
}
