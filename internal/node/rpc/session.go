package rpc

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/control"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/patience"
)

// SessionService answers nodes that offer containers.
type SessionService struct {
	Arriving  Arriving
	Admission Admission
	Calls     Entries
	Silence   time.Duration   // after which a peer counts as lost
	Life      context.Context //nolint:containedctx // The life of the daemon: entries come after sessions.
	Log       *slog.Logger

	entries sync.WaitGroup // of calls that sessions will write
}

// Arriving lets containers come.
type Arriving interface {
	// Accept begins a migration that a peer offers.
	Accept(from string, offer *api.Offer) (*migrate.Move, error)
}

// Admission says whether a container can come. See admission.Admission.
type Admission interface {
	Examine(ctx context.Context, from string, of engine.Definition,
		offer *api.Offer) ([]migration.Problem, error)
	Missing(ctx context.Context, of engine.Definition, problems []migration.Problem) (*api.Reservation, error)
}

// Attached is the work of a migration to this node, which talks to the source over a session.
type Attached interface {
	// Attach makes a session the way to the source, and passes on what comes until it is lost.
	Attach(stream control.Stream, attached func()) error
}

// Entries of calls are kept. See access.Record.
type Entries interface {
	Keep(ctx context.Context, entry audit.Entry)
}

// Session is the source's side of one migration to this node.
func (s *SessionService) Session(stream grpc.BidiStreamingServer[api.Envelope, api.Envelope]) error {
	from, err := Caller(stream.Context())
	if err != nil {
		return err
	}
	first, err := firstOf(stream, s.Silence)
	if err != nil {
		return err
	}
	if first.Offer == nil || first.Message == nil {
		return status.Error(codes.InvalidArgument, "a session begins with an offer")
	}
	if first.Offer.DryRun {
		return Error(s.answerDryRun(stream, from, first.Offer))
	}
	s.entries.Add(1) // the end of the agent waits for it
	m, err := s.Arriving.Accept(from, first.Offer)
	defer func() {
		go guard.Logged(s.Log, func() {
			defer s.entries.Done()
			s.audit(stream.Context(), first.Offer, m, err)
		})()
	}()
	if err != nil {
		return Error(err)
	}
	work, ok := m.Work().(Attached)
	if !ok {
		return status.Error(codes.Internal, "a migration to this node has no target")
	}
	err = work.Attach(stream, func() { m.Deliver(first.Message) })
	m.Happen(migration.PeerLost{Error: api.Plain(err)})
	return nil
}

// answerDryRun answers an offer that is only a question.
func (s *SessionService) answerDryRun(stream grpc.BidiStreamingServer[api.Envelope, api.Envelope],
	from string, offer *api.Offer) error {
	if err := envelopes.CheckProtocol(from, offer); err != nil {
		return err
	}
	definition, err := envelopes.Definition(offer)
	if err != nil {
		return err
	}
	if err := envelopes.CheckSizes(offer); err != nil {
		return err
	}
	problems, err := s.Admission.Examine(stream.Context(), from, definition, offer)
	if err != nil {
		return err
	}
	message, err := envelopes.Encode(migration.Message{Kind: migration.KindReserved, Problems: problems})
	if err != nil {
		return err
	}
	missing, err := s.Admission.Missing(stream.Context(), definition, problems)
	if err != nil {
		return err
	}
	missing.KeepsSpillKey = true
	return stream.Send(&api.Envelope{Message: message, Reservation: missing})
}

// WaitEntries waits until what sessions have to log is logged.
func (s *SessionService) WaitEntries() { s.entries.Wait() }

// firstOf receives the first message of a session. A peer that opens one and says nothing is not waited for.
func firstOf(stream grpc.BidiStreamingServer[api.Envelope, api.Envelope],
	silence time.Duration) (*api.Envelope, error) {
	var envelope *api.Envelope
	first := guard.Go(func() (err error) { // It ends with the stream, and that with the caller.
		envelope, err = stream.Recv()
		return err
	})
	timer := time.NewTimer(silence)
	defer timer.Stop()
	select {
	case err := <-first:
		return envelope, err
	case <-timer.C:
		return nil, status.Errorf(codes.DeadlineExceeded,
			"a session begins with an offer, and none came for %s", silence)
	}
}

// cutOff is the outcome of a session that ended before its migration did.
const cutOff = "cut off"

// audit logs the outcome of a migration that another node has offered, after the session's end. The
// migration may end a little later.
func (s *SessionService) audit(ctx context.Context, offer *api.Offer, m *migrate.Move, failed error) {
	entry := audit.Entry{Time: time.Now().UTC(), Method: "Session", Object: offer.GetMigration()}
	if m == nil {
		entry.Outcome, entry.Error = status.Code(failed).String(), api.Plain(failed)
		s.Calls.Keep(ctx, entry)
		return
	}
	limited, cancel := context.WithTimeout(s.Life, s.Silence)
	defer cancel()
	_ = patience.UntilClosed(limited, m.Done()) // the outcome tells
	record := m.Record()
	entry.Object += " (" + record.Spec.Name + ")"
	entry.Outcome, entry.Error = string(record.Result), record.Error
	if record.Result == migration.ResultRuns {
		entry.Outcome = cutOff
	}
	s.Calls.Keep(ctx, entry)
}
