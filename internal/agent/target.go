package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/control"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/latestart"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/transfer/anew"
	"github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/memory/arriving"
	"github.com/godwit/godwit/internal/transfer/volumes"
	"github.com/godwit/godwit/internal/wire/identity"
)

// What a data connection is for. The sections that it carries are those of packages link, latestart, dump,
// precopy, files and anew.
const (
	purposeMigration = "migration"
	purposeStage     = "stage"
	purposeLayers    = "layers" // made by the node that has a use for layers, see package layers
)

// target does the steps of the node that gets.
type target struct {
	agent      *Agent
	move       *migrate.Move
	definition engine.Definition
	offer      *api.Offer // nil after a crash of the agent
	control    *control.Line

	link    *link.Target // the first data connection
	memory  *arriving.Memory
	files   *files.Receiver
	anew    *anew.Target
	arrived chan struct{} // closed when the arrival is there
	start   *latestart.Start

	mu          sync.Mutex
	reservation *api.Reservation
	arrival     engine.Arrival
	// of the image store, whose layers are to be here from the reserve until they are mounted
	letGo func()
}

// Do does a step of the target.
func (t *target) Do(ctx context.Context, step migration.StepName) (time.Time, error) {
	return t.steps(t.move.Tracker.Spec.Mode).do(ctx, step)
}

// Undo undoes a step of the target.
func (t *target) Undo(ctx context.Context, step migration.StepName) error {
	return t.steps(t.move.Tracker.Spec.Mode).undo(ctx, step)
}

// release gives back what was reserved.
func (t *target) release(context.Context) error {
	t.releaseImages()
	t.agent.reservations.Release(t.move.Tracker.Spec.ID)
	return nil
}

// Ask fails: the outcome is known here.
func (t *target) Ask(context.Context, bool) (migration.Message, error) {
	return migration.Message{}, errors.New("the target knows the outcome itself")
}

// Unsent is for sources.
func (t *target) Unsent() bool { return false }

// Check finds out what became of the arrival.
func (t *target) Check(ctx context.Context) (engine.Outcome, time.Time, error) {
	outcome, err := t.agent.engines.EngineFor(t.definition).Arrived(ctx, t.definition.ID)
	if err == nil && outcome == engine.NeverRan && t.move.Tracker.Spec.Mode == migration.Restart {
		t.anew.GiveBack(ctx)
	}
	if err != nil || outcome == engine.NeverRan {
		return outcome, time.Time{}, err
	}
	return outcome, time.Time{}, t.anew.LetIn(ctx)
}

// reserve refuses what cannot work, before anything moves.
func (t *target) reserve(ctx context.Context) error {
	if err := t.agent.reservations.Take(t.move.Tracker.Spec.ID, t.definition); err != nil {
		return err
	}
	t.agent.reservations.Fill(t.move.Tracker.Spec.ID, t.move.Tracker.Spec.Source,
		envelopes.MemoryCopies(t.offer)*t.offer.MemoryBytes, t.agent.admission.Free())
	if err := t.holdImages(); err != nil {
		return err
	}
	problems, err := t.agent.admission.Examine(ctx, t.move.Tracker.Spec.Source, t.definition, t.offer)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return &migration.Refusal{Problems: problems}
	}
	reservation, err := t.agent.admission.Missing(ctx, t.definition, nil)
	if err != nil {
		return err
	}
	kept, residual := t.files.UseKept(), t.memory.UseResidual()
	t.mu.Lock()
	reservation.StartsLate = t.startsLate()
	reservation.Footprint, reservation.KeepsSpillKey = residual, true
	reservation.KeptFilesBytes = kept
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

// arrive makes all that can stand ready before the state is here. The source stages meanwhile.
func (t *target) arrive(ctx context.Context, expect expectation) error {
	if err := t.awaitImage(ctx); err != nil {
		return err
	}
	netns, err := t.agent.attachments.Attach(ctx, t.definition)
	if err != nil {
		return err
	}
	// then its engine has not to do with its network yet: see latestart.Start
	late := t.startsLate()
	if !late {
		if err := t.agent.network.ResaveConntrack(t.definition.ID, t.definition.Network.Address); err != nil {
			return err
		}
	}
	own, err := t.agent.engines.Lookup(t.definition)
	if err != nil {
		return err
	}
	arrival, err := expect(ctx, own, netns)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.arrival = arrival
	t.mu.Unlock()
	if !late {
		if err := t.arriveOnBridge(ctx, arrival); err != nil {
			return err
		}
	}
	close(t.arrived)
	t.releaseImages()
	return nil
}

// awaitImage waits until the image is here, if an engine needs it that has had to be given it. The
// source has staged then.
func (t *target) awaitImage(ctx context.Context) error {
	t.mu.Lock()
	lacks := t.reservation.GetMissingImage()
	t.mu.Unlock()
	images, err := t.agent.imagesOf(t.definition)
	if err != nil || images == nil || !lacks {
		return err
	}
	return t.link.AwaitStaged(ctx)
}

// startsLate reports whether the engine is to be told when to start the container.
func (t *target) startsLate() bool {
	return latestart.Is(t.agent.engines.EngineFor(t.definition), t.definition)
}

// restore makes the processes. The last moment in which it can be stopped is when all sockets exist
// and nothing runs.
func (t *target) restore(ctx context.Context) (time.Time, error) {
	lost := func(why string) { t.move.Happen(migration.Timeout{Reason: why}) }
	defer t.memory.Watch(lost, t.agent.broken(t.move))()
	t.agent.volumes.Forget(ctx, t.definition)
	permission := engine.Permission{
		Ask: func() error { return t.move.MayResume(ctx) },
		Open: func() error {
			return t.agent.network.Route(t.definition.Network.Address, network.Local(t.definition.ID))
		},
	}
	at, err := t.arrival.Restore(ctx, permission)
	if err == nil {
		go t.agent.guarded(func() { t.agent.giveRoom(t.definition) })()
	}
	return at, err
}

// finalise makes an ordinary container of the one that arrived: an agent that was killed after the resume
// may not have done so. What has become of the container since does not matter here, but to its
// engine: the copy here is the only one by now, so the engine may start it again when it ends, or
// has ended.
func (t *target) finalise(ctx context.Context) error {
	here := t.agent.engines.EngineFor(t.definition)
	_, err := here.Arrived(ctx, t.definition.ID)
	restarter := here.Capabilities().Restarter
	if err != nil || restarter == nil {
		return err
	}
	return restarter.Settled(ctx, t.definition.ID)
}

// discard removes an arrival that never ran, and redirects its address to the source.
func (t *target) discard(ctx context.Context) error {
	t.memory.ClosePush()
	usable, failed := t.files.Halt(migrate.Interruption(t.move.Record().Error))
	t.mu.Lock()
	arrival := t.arrival
	t.arrival = nil
	t.mu.Unlock()
	if arrival != nil {
		failed = errors.Join(failed, arrival.Close())
	}
	failed = errors.Join(failed, t.memory.Discard())
	if usable {
		t.files.Keep(ctx)
	}
	failed = errors.Join(failed, t.files.Undo(),
		t.agent.network.ResaveConntrack(t.definition.ID, t.definition.Network.Address),
		t.agent.engines.EngineFor(t.definition).Discard(ctx, t.definition.ID), t.anew.RedirectBack(ctx))
	return errors.Join(failed, t.leaveAddress(ctx))
}

// leaveAddress gives up the address here: it is at the source. If another container here has it,
// the source claims what is not its own, and nothing changes.
func (t *target) leaveAddress(ctx context.Context) error {
	address, source := t.definition.Network.Address, t.move.Tracker.Spec.Source
	if t.definition.Network.OnBridge() {
		return errors.Join(t.agent.network.AllowARP(address),
			t.agent.network.GiveBack(t.definition.ID, address, source),
			t.agent.network.Detach(t.definition.ID))
	}
	err := t.agent.network.Detach(t.definition.ID)
	other, listed := t.agent.admission.Holder(ctx, address)
	if listed != nil || other.ID != "" && other.ID != t.definition.ID {
		return errors.Join(err, listed)
	}
	if t.agent.leases.AtHome(address) {
		return errors.Join(err, t.agent.network.Route(address, network.Via(source)))
	}
	return errors.Join(err, t.agent.network.Unroute(address))
}

// fence kills and removes the copy that runs here, because an operator decided that it runs at the source.
func (t *target) fence(ctx context.Context) error {
	// Its connections go on at the source: nobody may hear that they end here.
	if err := t.agent.network.Quiesce(t.definition.Network.Address); err != nil {
		return err
	}
	if err := t.agent.network.ResaveConntrack(t.definition.ID, t.definition.Network.Address); err != nil {
		return err
	}
	stay := volumes.StayingKeys(t.definition)
	err := t.agent.engines.EngineFor(t.definition).Destroy(ctx, t.definition.ID, stay)
	t.agent.adopter.Drop(t.definition.ID) // it runs at the source, with its address
	return errors.Join(err, t.leaveAddress(ctx))
}

// Send hands a message to the session, with what belongs to it.
func (t *target) Send(message migration.Message) {
	message.Incarnation = t.agent.incarnation()
	t.control.Send(message, func(envelope *api.Envelope) {
		if message.Kind == migration.KindReserved {
			t.mu.Lock()
			envelope.Reservation = t.reservation
			t.mu.Unlock()
		}
	})
}

// Ended gives back what the steps have left.
func (t *target) Ended(result migration.Finish) {
	t.memory.Close(result.Result == migration.Moved)
	t.releaseImages()
	t.agent.reservations.Release(t.move.Tracker.Spec.ID)
	t.files.End(result.Result == migration.Moved)
	t.agent.finish(t.move, result)
}

// Fresh is the target as after a restart of the agent.
func (t *target) Fresh() migrate.Work {
	return newTarget(t.agent, t.move, t.definition, t.control.Peer(), t.offer)
}

// hears takes what the source says over a session.
func (t *target) hears(envelope *api.Envelope) {
	if envelope.Message != nil {
		t.move.Deliver(envelope.Message)
	}
}

func newTarget(agent *Agent, m *migrate.Move, definition engine.Definition, node identity.Node,
	offer *api.Offer) *target {
	t := &target{
		agent: agent, move: m, definition: definition, offer: offer, link: link.NewTarget(),
		arrived: make(chan struct{}),
		control: control.NewLine(agent.ctx, agent.lineTo(node, m)),
	}
	t.files, t.anew = receivingFiles(t), startingAnew(t)
	t.memory = arrivingMemory(t)
	t.start = lateStart(t, t.memory)
	return t
}
