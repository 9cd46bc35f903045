package agent

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/godwit/godwit/internal/access"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestAuditOfASession: a migration that ends after its session has its result in the log, and one that does
// not end has an outcome, too.
func TestAuditOfASession(t *testing.T) {
	kept := audit.New(t.TempDir(), audit.Nodes)
	a := &Agent{
		calls: access.NewRecord(nil, kept, slog.New(slog.DiscardHandler)), ctx: stopped(t),
	}
	spec := migration.Spec{
		ID: "0123456789abcdef", Side: migration.Target, Mode: migration.Cold, Name: "web",
		Container: strings.Repeat("0", 64), Source: "a", Target: "b",
	}
	machine, err := migration.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	offer := &api.Offer{Migration: spec.ID}
	a.auditSession(t.Context(), offer, newMove(a, nil, machine), nil)
	record := machine.Record()
	record.State, record.Result = migration.Done, migration.Moved
	ended, _, err := migration.Resume(record)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		a.ctx = t.Context()
		m := newMove(a, nil, machine)
		go a.auditSession(t.Context(), offer, m, nil)
		synctest.Wait()
		m.machine = ended
		m.remember()
	})
	var got []string
	err = kept.Read(time.Time{}, func(e audit.Entry) error {
		got = append(got, e.Object+": "+e.Outcome)
		return nil
	})
	want := []string{spec.ID + " (web): cut off", spec.ID + " (web): moved"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// offers is a session that begins with an offer.
type offers struct {
	grpc.BidiStreamingServer[api.Envelope, api.Envelope]
	ctx   context.Context
	offer *api.Offer
}

func (o offers) Context() context.Context { return o.ctx }

func (o offers) Recv() (*api.Envelope, error) {
	return &api.Envelope{Offer: o.offer, Message: &api.Message{}}, nil
}

// TestAuditBeforeTheEnd: the end of an agent waits for what sessions have to log.
func TestAuditBeforeTheEnd(t *testing.T) {
	a := newTestAgent(t)
	kept := audit.New(t.TempDir(), audit.Nodes)
	a.calls = access.NewRecord(nil, kept, a.log)
	ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{
		Addr: &net.TCPAddr{}, AuthInfo: wire.AuthInfo{Peer: identity.Peer{Name: "a", Number: 1}},
	})
	refused := offers{ctx: ctx, offer: &api.Offer{Migration: testMigration}}
	if err := newPeerService(a).Session(refused); err == nil {
		t.Error("an offer without a protocol is accepted")
	}
	a.entries.Wait()
	entries := 0
	err := kept.Read(time.Time{}, func(audit.Entry) error {
		entries++
		return nil
	})
	if err != nil || entries != 1 {
		t.Errorf("%d entries are in the log: %v", entries, err)
	}
}

func stopped(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
