package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/control"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/frozen"
	"github.com/godwit/godwit/internal/latestart"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/switchover"
	"github.com/godwit/godwit/internal/transfer/anew"
	"github.com/godwit/godwit/internal/transfer/dump"
	"github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/memory/leaving"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/transfer/volumes"
	"github.com/godwit/godwit/internal/wire/identity"
)

// source does the steps of the node that gives.
type source struct {
	agent      *Agent
	move       *migrate.Move
	definition engine.Definition
	target     identity.Node
	control    *control.Source

	// What the steps leave for later ones. After a crash all of it is gone, and the undos do without.
	settings    settings
	mu          sync.Mutex
	offered     *api.Offer
	reservation *api.Reservation
	link        *link.Link // all data connections
	packets     *switchover.Packets
	dump        *dump.Dump
	files       *files.Sender
	anew        *anew.Source
	memory      *leaving.Memory
	frozen      *frozen.Copy
	auto        *forecast.Auto // nil: the user has named the mode
	volumes     *volumes.Leaving

	layers *layers.Delivery  // of the image; nil: the target had all
	start  latestart.Request // of the container by the target's engine
}

// preparation is what a migration begins with at its source. That of an earlier agent will only be undone, or
// finalised: it begins with nothing.
type preparation struct {
	settings migration.Settings
	early    *link.Early    // connections that were made before; nil: none
	auto     *forecast.Auto // nil: the user has named the mode
	split    *rounds.Split  // nil: all is handed over, or will be undone
	slowed   bool           // the container may have been slowed down, as far as is known here
}

func newSource(agent *Agent, m *migrate.Move, definition engine.Definition, node identity.Node,
	p preparation) *source {
	s := &source{agent: agent, move: m, definition: definition, target: node, auto: p.auto}
	s.volumes = agent.volumes.Leave(definition, node, m.Tracker.Spec.Mode,
		func() bool { return s.packets.StoppedNow() })
	s.settings.Set(p.settings)
	s.control = control.NewSource(agent.ctx, agent.lineTo(node, m), sourceEnd{s})
	s.frozen, s.link, s.packets = frozenCopy(s), linkTo(s, p.early), packetsOf(s)
	s.files, s.anew = sendingFiles(s), stopAnew(s)
	s.memory = leavingMemory(s, p)
	s.dump = dumpOf(s)
	return s
}

// imagesDir is where the execution state is while it leaves, in memory.
func (s *source) imagesDir() string {
	return filepath.Join(s.agent.config.RunDir, "migrations", s.id(), "images")
}

func (s *source) id() string { return s.move.Tracker.Spec.ID }

// Do does a step of the source.
func (s *source) Do(ctx context.Context, step migration.StepName) (time.Time, error) {
	return s.steps(s.move.Tracker.Spec.Mode).do(ctx, step)
}

// Undo undoes a step of the source.
func (s *source) Undo(ctx context.Context, step migration.StepName) error {
	return s.steps(s.move.Tracker.Spec.Mode).undo(ctx, step)
}

// Check fails: nothing arrives here.
func (s *source) Check(context.Context) (engine.Outcome, time.Time, error) {
	return "", time.Time{}, errors.New("nothing arrives at the source")
}

// examine finds what CRIU cannot dump, before anything moves, and what is to be offered.
func (s dumping) examine(ctx context.Context) error {
	of := s.agent.engines.EngineFor(s.definition)
	if err := push.AwaitFilled(ctx, of, s.definition.ID, s.definition.Name); err != nil {
		return err
	}
	problems, err := of.Examine(ctx, s.definition.ID)
	if err != nil {
		return err
	}
	if n := s.agent.moves.Entered(s.definition.ID); n > 0 && len(problems) == 0 {
		problems = append(problems, engine.Problem{
			What:   fmt.Sprintf("%d processes that were run in the container by exec", n),
			Why:    "they belong to a session on this node",
			Remedy: "wait until they have ended, or end them",
		})
	}
	if err := refuse(anew.Remedy(ctx, s.agent.engines, s.definition, problems)); err != nil {
		return err
	}
	if err := s.describe(ctx); err != nil {
		return err
	}
	if err := s.examineInodes(ctx); err != nil {
		return err
	}
	s.move.Tracker.Expect(s.offered.MemoryBytes + s.offered.TreesBytes)
	needed := push.SpillBytes(s.move.Tracker.Spec.Mode, s.settings.Get(), s.offered.MemoryBytes)
	return refuse(append(s.agent.admission.ExamineOwnRoom(s.offered),
		push.ExamineRoom(s.agent.self.Name, s.agent.config.StateDir, needed)...))
}

// examineAgain finds what has come since the rounds began and would make the dump fail, while
// nothing is frozen.
func (s dumping) examineAgain(ctx context.Context) error {
	if !s.memory.Ahead() {
		return nil
	}
	problems, err := s.agent.engines.EngineFor(s.definition).Examine(ctx, s.definition.ID)
	if err != nil {
		return err
	}
	return refuse(anew.Remedy(ctx, s.agent.engines, s.definition, problems))
}

// sameAgain wants the container to have the name and limits that the target was told. An engine may change
// them meanwhile (docker update, docker rename), and the change would be lost.
func (s *source) sameAgain(ctx context.Context) error {
	now, err := s.agent.engines.EngineFor(s.definition).Inspect(ctx, s.definition.ID)
	if err != nil {
		return err
	}
	if is, was := now.Definition, s.definition; is.Name != was.Name || is.Limits != was.Limits {
		return refuse([]engine.Problem{{
			What: "container " + was.Name, Why: "its name or limits changed during the move",
			Remedy: "migrate it again",
		}})
	}
	return nil
}

// refuse makes a refusal of what an engine found.
func refuse(found []engine.Problem) error {
	if len(found) == 0 {
		return nil
	}
	problems := make([]migration.Problem, len(found))
	for i, p := range found {
		problems[i] = migration.Problem{What: p.What, Why: p.Why, Remedy: p.Remedy}
	}
	return &migration.Refusal{Problems: problems}
}

// Send hands a message to the session; what must arrive although the session is lost goes by a call
// of its own.
func (s *source) Send(message migration.Message) {
	s.control.Send(message, func(envelope *api.Envelope) {
		if message.Kind == migration.KindConfirm {
			envelope.Message.ReportJson = s.reportJSON()
		}
	})
}

// Unsent reports whether the final marker certainly stays on this node. A released marker may still be
// queued in the stream behind unsent content; closing the stream then keeps the marker from leaving.
func (s *source) Unsent() bool {
	if s.frozen.DenyFinal() {
		return true
	}
	return s.frozen.FinalReleased() && s.link.KeepFinal()
}

// Ask asks the target for the outcome.
func (s *source) Ask(ctx context.Context, abort bool) (migration.Message, error) {
	s.frozen.KeepInDoubt(ctx)
	abort = abort && !s.frozen.Killed(ctx) // then the target has the only copy that can go on
	var reply *api.OutcomeReply
	err := s.control.Ask(ctx, func(ctx context.Context, peer api.PeerClient) (err error) {
		reply, err = peer.Outcome(ctx, s.question(abort))
		return err
	})
	if err != nil {
		return migration.Message{}, err
	}
	if reply.Message == nil {
		return migration.Message{}, fmt.Errorf("%s sent an empty answer", s.target.Name)
	}
	return envelopes.Decode(reply.Message)
}

// question says for which container an outcome is asked, and of which state: see migration.MayDeny.
func (s *source) question(abort bool) *api.OutcomeRequest {
	return &api.OutcomeRequest{
		Migration: s.id(), Abort: abort, Incarnation: s.move.Record().Incarnation,
		Container: s.definition.ID, Name: s.definition.Name, Engine: s.definition.EngineName,
	}
}

// Ended gives back what the steps have left.
func (s *source) Ended(result migration.Finish) {
	s.layers.Cancel()
	s.frozen.EndKeeper()
	s.link.EndEarly()
	data := s.link.Data()
	if data != nil { // Also when it failed: that has cost something, too.
		s.move.Tracker.Counted(carried(s.link.Sent()))
		if transport, known := data.Transport(); known {
			s.agent.peers.NoteTransport(s.target.Name, transport)
		}
		s.noteTransfer()
	}
	if err := s.memory.DropStaged(); err != nil {
		s.agent.log.Warn("cannot end the tracking of memory", "container", s.definition.Name, "error", err)
	}
	if s.auto != nil && result.Result == migration.Moved {
		if missed := s.auto.Forecast.Missed(s.move.Tracker.Report(s.move.RecordInside(),
			false)); missed != "" {
			s.move.Tracker.Decided("auto: " + missed)
		}
	}
	s.agent.finish(s.move, result)
	s.control.Close()
}

// Fresh is the source as after a restart of the agent.
func (s *source) Fresh() migrate.Work {
	return newSource(s.agent, s.move, s.volumes.Moving(), s.target,
		preparation{settings: s.settings.Get()})
}

// reportJSON is the report that goes to the target with the confirmation.
func (s *source) reportJSON() []byte {
	report, err := json.Marshal(s.move.Tracker.Report(s.move.RecordInside(), false))
	if err != nil {
		return nil // The target makes do with what it knows itself.
	}
	return report
}

// noteTransfer keeps what the first round has shown of the link: unless it was held back, or shared
// the link with layers.
func (s *source) noteTransfer() {
	round, _ := predict.Transferred(s.move.Tracker.Report(s.move.RecordInside(), false))
	if round.Seconds > 0 && s.settings.Get().BandwidthLimit == 0 && s.layers == nil {
		s.agent.peers.NoteTransfer(s.target.Name, round.BitsPerSecond(), s.link.Seen() > 0)
	}
}
