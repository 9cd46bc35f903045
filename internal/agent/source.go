package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// source does the steps of the node that gives.
type source struct {
	agent      *Agent
	move       *move
	definition engine.Definition
	target     identity.Node
	control    sourceControl

	// What the steps leave for later ones. After a crash all of it is gone, and the undos do without.
	mu          sync.Mutex
	offered     *api.Offer
	reservation *api.Reservation
	data        *stream.Session
	departure   engine.Departure
	hold        *network.Hold
	held        bool       // the hold was started
	silenced    chan error // nothing that the frozen container sends leaves
	sender      *stateSender
}

func newSource(agent *Agent, m *move, definition engine.Definition, node identity.Node) *source {
	s := &source{agent: agent, move: m, definition: definition, target: node}
	s.control = sourceControl{
		control: newControl(agent, m, node), offer: s.offer, reservation: s.reserved,
	}
	return s
}

func (s *source) reserved(reservation *api.Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reservation = reservation
}

// imagesDir is where the execution state is while it leaves, in memory.
func (s *source) imagesDir() string {
	return filepath.Join(s.agent.config.RunDir, "migrations", s.id(), "images")
}

func (s *source) id() string { return s.move.tracker.spec.ID }

func (s *source) do(ctx context.Context, step migration.StepName) (time.Time, error) {
	switch step {
	case migration.StepExamine:
		return time.Time{}, s.examine(ctx)
	case migration.StepStage:
		return time.Time{}, s.stage(ctx)
	case migration.StepPrepare:
		return time.Time{}, s.prepare(ctx)
	case migration.StepHold:
		return time.Time{}, s.holdPackets()
	case migration.StepFreeze:
		return s.freeze(ctx)
	case migration.StepDump:
		return time.Time{}, s.dump(ctx)
	case migration.StepSend:
		return time.Time{}, s.sendState(ctx)
	case migration.StepForward:
		return time.Time{}, s.forward(ctx)
	case migration.StepDestroy:
		return time.Time{}, s.destroy(ctx)
	case migration.StepCleanup:
		return time.Time{}, s.cleanup(ctx)
	}
	return time.Time{}, fmt.Errorf("the source has no step %s", step)
}

func (s *source) undo(ctx context.Context, step migration.StepName) error {
	switch step {
	case migration.UndoPrepare:
		return s.unprepare(ctx)
	case migration.UndoHold:
		return s.release(ctx, network.Local(s.definition.ID))
	case migration.UndoFreeze:
		return s.agent.engine.Thaw(ctx, s.definition.ID)
	}
	return fmt.Errorf("the source has no undo %s", step)
}

func (s *source) check(context.Context) (engine.Outcome, time.Time, error) {
	return "", time.Time{}, errors.New("nothing arrives at the source")
}

// examine finds what CRIU cannot dump, before anything moves, and what is to be offered.
func (s *source) examine(ctx context.Context) error {
	problems, err := s.agent.engine.Examine(ctx, s.definition.ID)
	if err != nil {
		return err
	}
	if n := s.agent.moves.entered(s.definition.ID); n > 0 && len(problems) == 0 {
		problems = append(problems, engine.Problem{
			What: fmt.Sprintf("%d processes that were run in the container by exec", n), Why: "they belong to a session on this node",
			Remedy: "wait until they have ended, or end them",
		})
	}
	if err := refuse(problems); err != nil {
		return err
	}
	s.offered, err = s.agent.makeOffer(ctx, s.move.tracker.spec, s.definition)
	if err != nil {
		return err
	}
	s.move.tracker.expect(s.offered.MemoryBytes + s.offered.TreesBytes)
	return refuse(s.agent.examineOwnRoom(s.offered))
}

func (s *source) offer() *api.Offer { return s.offered }

// refuse makes a refusal of what an engine found.
func refuse(found []engine.Problem) error {
	if len(found) == 0 {
		return nil
	}
	problems := make([]migration.Problem, len(found))
	for i, p := range found {
		problems[i] = migration.Problem{What: p.What, Why: p.Why, Remedy: p.Remedy}
	}
	return &problemsError{problems}
}

// prepare does all that a dump needs and that takes time.
func (s *source) prepare(ctx context.Context) error {
	if err := mountMemory(s.imagesDir()); err != nil {
		return err
	}
	departure, err := s.agent.engine.Depart(ctx, s.definition.ID)
	if err != nil {
		return err
	}
	s.departure = departure
	if s.hold, err = s.agent.network.Prepare(s.definition.Network.Address); err != nil {
		return err
	}
	// Again, just before it counts: what was staged may have taken long, and an idle connection loses its window.
	link, err := s.data.Warm(ctx, stream.Budget{})
	if err != nil {
		return err
	}
	s.move.tracker.clock(link.Clock)
	return nil
}

// unprepare ends what waits for the dump. After a crash of the agent only the engine knows what there is.
func (s *source) unprepare(ctx context.Context) error {
	var err error
	if s.departure != nil {
		err = s.departure.Close()
	} else {
		err = s.agent.engine.Thaw(ctx, s.definition.ID)
	}
	if s.hold != nil && !s.held {
		err = errors.Join(err, s.hold.Close())
		s.hold = nil
	}
	return errors.Join(err, unmountMemory(s.imagesDir()), os.RemoveAll(filepath.Dir(s.imagesDir())))
}

func (s *source) holdPackets() error {
	s.held = true
	return s.hold.Start()
}

// release lets held packets go, in order. After a crash of the agent there is no queue left, only a route to set.
func (s *source) release(ctx context.Context, to network.Destination) error {
	if s.hold == nil && to == network.Local(s.definition.ID) {
		return s.agent.routeHere(ctx, s.definition)
	}
	if s.hold == nil {
		return s.agent.network.Route(s.definition.Network.Address, to)
	}
	if err := s.hold.Release(ctx, to, 0); err != nil {
		return err
	}
	s.move.tracker.held(s.hold.Stats())
	s.hold, s.held = nil, false
	return nil
}

func (s *source) freeze(ctx context.Context) (time.Time, error) {
	at, err := s.departure.Freeze(ctx)
	if err != nil {
		return time.Time{}, err
	}
	s.move.tracker.frozen(at)
	// It takes effect long before CRIU looks at the sockets; the change of the packet filter takes longer to return.
	s.silenced = make(chan error, 1)
	go func() { s.silenced <- s.agent.network.Silence(s.definition.Network.Address) }()
	return time.Time{}, nil
}

// dump writes the execution state into memory, and sends what only grows while it does.
func (s *source) dump(ctx context.Context) error {
	defer s.guard(ctx)()
	s.sender = newStateSender(s.imagesDir(), func(name string) (io.WriteCloser, error) { return s.begin(kindState, name) })
	complete := make(chan struct{})
	followed := make(chan error, 1)
	go func() { followed <- s.sender.follow(ctx, complete) }()
	err := s.departure.Dump(ctx, s.imagesDir())
	close(complete)
	return errors.Join(err, <-followed, <-s.silenced)
}

// forward lets the held packets go to the target, and all that comes after them.
func (s *source) forward(ctx context.Context) error {
	return s.release(ctx, network.Via(s.target.Name))
}

// destroy removes the frozen copy, once the target has on disk what it received: in the freeze it had no time for that.
// An operator who says that the container runs at the target may say so because that node cannot be asked.
func (s *source) destroy(ctx context.Context) error {
	if !s.move.record().Resolved {
		err := s.awaitDurable(ctx)
		if status.Code(err) == codes.DataLoss {
			return s.lossy(err)
		}
		if err != nil {
			return fmt.Errorf("files at %s: %s", s.target.Name, plain(err))
		}
	}
	return s.agent.engine.Destroy(ctx, s.definition.ID)
}

func (s *source) awaitDurable(ctx context.Context) error {
	return s.control.askFor(ctx, durableTimeout, func(ctx context.Context, peer api.PeerClient) error {
		_, err := peer.Durable(ctx, &api.DurableRequest{Migration: s.id()})
		return err
	})
}

// lossy makes a refusal of a target that does not know whether it still has the files: the copy here is the only one
// that is whole for sure, and an operator has to decide.
func (s *source) lossy(err error) error {
	id := s.id()
	return &problemsError{[]migration.Problem{{
		What: "files at " + s.target.Name, Why: plain(err), Remedy: fmt.Sprintf(
			`decide: "godwit migration resolve %s --runs-at source" goes on with the frozen copy here, "--runs-at target" gives it away`, id),
	}}}
}

// durableTimeout bounds how long a busy disk may take; the step is tried again.
const durableTimeout = time.Minute

func (s *source) cleanup(ctx context.Context) error {
	err := s.unprepare(ctx)
	return errors.Join(err, s.agent.network.Detach(s.definition.ID), s.straighten())
}

// straighten forgets the way to a container that has come home: it is the one that packets take anyway.
func (s *source) straighten() error {
	address := s.definition.Network.Address
	home, err := s.agent.network.Home(address)
	if err != nil || home != s.target.Number {
		return err
	}
	return s.agent.network.Unroute(address)
}

// send hands a message to the session; what must arrive although the session is lost goes by a call of its own.
func (s *source) send(message migration.Message) {
	s.control.sendMessage(message, func(envelope *api.Envelope) {
		if message.Kind == migration.KindConfirm {
			envelope.Message.ReportJson = s.reportJSON()
		}
	})
}

func (s *source) ask(ctx context.Context, abort bool) (migration.Message, error) {
	var reply *api.OutcomeReply
	err := s.control.ask(ctx, func(ctx context.Context, peer api.PeerClient) (err error) {
		reply, err = peer.Outcome(ctx, &api.OutcomeRequest{Migration: s.id(), Abort: abort})
		return err
	})
	if err != nil {
		return migration.Message{}, err
	}
	if reply.Message == nil {
		return migration.Message{}, fmt.Errorf("%s answered nothing", s.target.Name)
	}
	return decodeMessage(reply.Message)
}

func (s *source) ended(result migration.Finish) {
	s.mu.Lock()
	data := s.data
	s.mu.Unlock()
	if data != nil { // Also when it failed: that has cost something, too.
		s.move.tracker.counted(data.Counters())
	}
	s.agent.migrationEnded(s.move, result)
	s.control.close()
}

// reportJSON is the report that goes to the target with the confirmation.
func (s *source) reportJSON() []byte {
	report, err := json.Marshal(s.move.tracker.now(s.move.machine.Record(), false))
	if err != nil {
		return nil // The target makes do with what it knows itself.
	}
	return report
}
