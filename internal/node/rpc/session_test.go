package rpc

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/access"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/control"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// entries are what was logged.
type entries struct{ got []string }

func (e *entries) Keep(_ context.Context, entry audit.Entry) {
	e.got = append(e.got, entry.Object+": "+entry.Outcome)
}

// TestAuditOfASession: a migration that has ended has its result in the log, and one that does not end has an
// outcome, too.
func TestAuditOfASession(t *testing.T) {
	n, kept := newNode(t), &entries{}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	s := &SessionService{Calls: kept, Silence: time.Minute, Life: over, Log: slog.New(slog.DiscardHandler)}
	underWay := n.begun(t, migration.Target, idle{})
	s.audit(t.Context(), &api.Offer{Migration: testMigration}, underWay, nil)
	id := n.ended(t, 1, func(r *migration.Record) { r.Decision, r.Result = migration.Ran, migration.Moved })
	moved, err := n.moves.Find(id)
	if err != nil {
		t.Fatal(err)
	}
	s.audit(t.Context(), &api.Offer{Migration: id}, moved, nil)
	want := []string{testMigration + " (web): cut off", id + " (unknown): moved"}
	if !slices.Equal(kept.got, want) {
		t.Errorf("%q; want %q", kept.got, want)
	}
}

// offers is a session that begins with an offer.
type offers struct {
	grpc.BidiStreamingServer[api.Envelope, api.Envelope]
	ctx   context.Context
	first *api.Envelope
	err   error
}

func (o offers) Context() context.Context { return o.ctx }

func (o offers) Recv() (*api.Envelope, error) {
	if o.first == nil && o.err == nil {
		<-o.ctx.Done()
		return nil, o.ctx.Err()
	}
	return o.first, o.err
}

// arrivals accept what is offered, or nothing.
type arrivals struct {
	move *migrate.Move
	err  error
}

func (a *arrivals) Accept(string, *api.Offer) (*migrate.Move, error) { return a.move, a.err }

// TestAuditBeforeTheEnd: the end of an agent waits for what sessions have to log.
func TestAuditBeforeTheEnd(t *testing.T) {
	kept := audit.New(t.TempDir(), audit.Nodes)
	log := slog.New(slog.DiscardHandler)
	service := &SessionService{
		Arriving: &arrivals{err: api.ErrRefused}, Calls: access.NewRecord(nil, kept, log),
		Silence: time.Minute, Life: t.Context(), Log: log,
	}
	ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{
		Addr: &net.TCPAddr{}, AuthInfo: wire.AuthInfo{Peer: identity.Peer{Name: "a", Number: 1}},
	})
	refused := offers{ctx: ctx, first: &api.Envelope{
		Offer: &api.Offer{Migration: testMigration}, Message: &api.Message{},
	}}
	if err := service.Session(refused); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("error %v", err)
	}
	service.WaitEntries()
	entries := 0
	err := kept.Read(time.Time{}, func(audit.Entry) error {
		entries++
		return nil
	})
	if err != nil || entries != 1 {
		t.Errorf("%d entries are in the log: %v", entries, err)
	}
}

// talks is work that talks over a session until the source ends it.
type talks struct {
	idle
	err error
}

func (w talks) Attach(_ control.Stream, attached func()) error {
	attached()
	return w.err
}

// TestSession hands a session to the migration that it begins, and refuses what is none.
func TestSession(t *testing.T) {
	n, arriving := newNode(t), &arrivals{}
	service := &SessionService{Arriving: arriving, Calls: &entries{}, Silence: time.Minute, Life: t.Context(),
		Log: slog.New(slog.DiscardHandler)}
	ctx := callFrom(t, "a")
	offer := &api.Envelope{
		Offer: &api.Offer{Migration: testMigration}, Message: &api.Message{Kind: "reserve"},
	}
	for name, c := range map[string]struct {
		stream offers
		want   codes.Code
	}{
		"no caller": {offers{ctx: t.Context(), first: offer}, codes.Unauthenticated},
		"cut off":   {offers{ctx: ctx, err: io.EOF}, codes.Unknown},
		"no offer": {offers{ctx: ctx, first: &api.Envelope{Message: &api.Message{}}},
			codes.InvalidArgument},
		"no message": {offers{ctx: ctx, first: &api.Envelope{Offer: &api.Offer{}}}, codes.InvalidArgument},
		"a question of no protocol": {offers{ctx: ctx, first: &api.Envelope{
			Offer: &api.Offer{DryRun: true}, Message: &api.Message{},
		}}, codes.InvalidArgument},
	} {
		if err := service.Session(c.stream); status.Code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := n.begun(t, migration.Target, talks{err: io.EOF})
	arriving.move = m
	if err := service.Session(offers{ctx: ctx, first: offer}); err != nil {
		t.Errorf("the session ended with %v", err)
	}
	<-m.Done() // what was begun is undone
	m.Take(idle{})
	if err := service.Session(offers{ctx: ctx, first: offer}); status.Code(err) != codes.Internal {
		t.Errorf("a migration that talks to nobody: %v", err)
	}
	service.Silence = time.Millisecond
	if err := service.Session(offers{ctx: ctx}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a peer that says nothing: %v", err)
	}
}
