package agent

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/statedir"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestAnotherStateIsNotDurable: the source gives up the last copy when a target says that its own is on disk.
// The state of another machine has the journal, but not the container.
func TestAnotherStateIsNotDurable(t *testing.T) {
	a := newTestAgent(t)
	a.state = &statedir.Dir{Incarnation: "here"}
	record, err := migration.Banned(testMigration, "a", "b", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	record.Decision, record.Result = migration.Ran, migration.Moved
	if err := a.moves.journal(testMigration, engine.Definition{}).Write(record); err != nil {
		t.Fatal(err)
	}
	if err := a.moves.recover(); err != nil {
		t.Fatal(err)
	}
	caller := &grpcpeer.Peer{AuthInfo: wire.AuthInfo{Peer: identity.Peer{Name: "a", Number: 1}}}
	ctx := grpcpeer.NewContext(t.Context(), caller)
	for expected, lost := range map[string]bool{"here": false, "": false, "elsewhere": true} {
		request := &api.DurableRequest{Migration: testMigration, Incarnation: expected}
		_, err := newPeerService(a).Durable(ctx, request)
		if (status.Code(err) == codes.DataLoss) != lost {
			t.Errorf("asked for state %q: %v", expected, err)
		}
	}
}
