package rpc

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
)

func newOutcomes(n *node) *OutcomeService {
	return &OutcomeService{
		Node: "b", Incarnation: "here", Moves: n.moves, LeavesYet: n.recovery.LeavesYet,
		Sync: func(*journal.Journal) error { return nil },
	}
}

// TestAnotherStateIsNotDurable: the source gives up the last copy when a target says that its own is on disk.
// The state of another machine has the journal, but not the container.
func TestAnotherStateIsNotDurable(t *testing.T) {
	n := newNode(t)
	id := n.ended(t, 1, func(r *migration.Record) { r.Decision, r.Result = migration.Ran, migration.Moved })
	for expected, lost := range map[string]bool{"here": false, "": false, "elsewhere": true} {
		request := &api.DurableRequest{Migration: id, Incarnation: expected}
		_, err := newOutcomes(n).Durable(callFrom(t, "a"), request)
		if (status.Code(err) == codes.DataLoss) != lost {
			t.Errorf("asked for state %q: %v", expected, err)
		}
	}
}

// TestDurable promises nothing for a container that is not here.
func TestDurable(t *testing.T) {
	n := newNode(t)
	ran := func(r *migration.Record) { r.Decision, r.Result = migration.Ran, migration.Moved }
	moved := n.ended(t, 1, ran)
	service := newOutcomes(n)
	for name, c := range map[string]struct {
		from, id string
		want     codes.Code
	}{
		"on disk":      {"a", moved, codes.OK},
		"another node": {"c", moved, codes.PermissionDenied},
		"not known":    {"a", testMigration, codes.DataLoss},
		"overruled": {"a", n.ended(t, 2, func(r *migration.Record) { r.Overruled = true }),
			codes.DataLoss},
		"denied": {"a", n.ended(t, 3, func(*migration.Record) {}), codes.DataLoss},
	} {
		_, err := service.Durable(callFrom(t, c.from), &api.DurableRequest{Migration: c.id})
		if status.Code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	service.Sync = func(*journal.Journal) error { return errFailed }
	if _, err := service.Durable(callFrom(t, "a"), &api.DurableRequest{Migration: moved}); err == nil {
		t.Error("files that are not on disk count as durable")
	}
}

// TestTell hands messages to migrations, and tells a target to forget one that this node has forgotten.
func TestTell(t *testing.T) {
	n := newNode(t)
	n.begun(t, migration.Source, idle{})
	service := newOutcomes(n)
	running := &api.Message{Kind: string(migration.KindRunning)}
	for name, c := range map[string]struct {
		from    string
		request *api.TellRequest
		want    codes.Code
	}{
		"no message": {"a", &api.TellRequest{Migration: testMigration}, codes.InvalidArgument},
		"another node": {"c", &api.TellRequest{Migration: testMigration, Message: running},
			codes.PermissionDenied},
		"outside of a session": {"a", &api.TellRequest{Migration: testMigration,
			Message: &api.Message{Kind: string(migration.KindPrepared)}}, codes.InvalidArgument},
		"not known": {"a", &api.TellRequest{Migration: "00000000000000aa",
			Message: &api.Message{Kind: string(migration.KindAbort)}}, codes.NotFound},
		"to a source": {"a", &api.TellRequest{Migration: testMigration, Message: running}, codes.OK},
	} {
		if _, err := service.Tell(callFrom(t, c.from), c.request); status.Code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	forgotten := &api.TellRequest{Migration: "00000000000000bb", Message: running}
	reply, err := service.Tell(callFrom(t, "a"), forgotten)
	if err != nil || reply.Answer.GetKind() != string(migration.KindConfirm) {
		t.Errorf("what is forgotten had come to its end: %v, %v", reply, err)
	}
	service.LeavesYet = func(string) error { return engine.ErrBusy }
	if _, err := service.Tell(callFrom(t, "a"), forgotten); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a source that has lost its journal: %v", err)
	}
}

// TestOutcome refuses questions that no source asks.
func TestOutcome(t *testing.T) {
	service := newOutcomes(newNode(t))
	for name, c := range map[string]struct {
		request *api.OutcomeRequest
		want    codes.Code
	}{
		"no id": {&api.OutcomeRequest{Migration: "../x"}, codes.InvalidArgument},
		"no id of a container": {&api.OutcomeRequest{Migration: testMigration, Container: "../x"},
			codes.InvalidArgument},
		"not known": {&api.OutcomeRequest{Migration: testMigration}, codes.OK},
	} {
		reply, err := service.Outcome(callFrom(t, "a"), c.request)
		if status.Code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && reply.Message.GetKind() != string(migration.KindNeverRan) {
			t.Errorf("%s: %v", name, reply)
		}
	}
	_, err := service.Outcome(t.Context(), &api.OutcomeRequest{})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a caller without a certificate: %v", err)
	}
}

// keeps is work that keeps a key.
type keeps struct {
	idle
	key []byte
}

func (k *keeps) KeepSpillKey(key []byte) []byte {
	k.key = key
	return []byte("kept")
}

// TestSpill keeps keys for the sources of migrations only.
func TestSpill(t *testing.T) {
	n, work := newNode(t), &keeps{}
	m := n.begun(t, migration.Target, work)
	service := newOutcomes(n)
	spill := func(from string, length int) (*api.SpillReply, error) {
		return service.Spill(callFrom(t, from),
			&api.SpillRequest{Migration: testMigration, Key: make([]byte, length)})
	}
	if reply, err := spill("a", 0); err != nil || string(reply.Key) != "kept" {
		t.Errorf("%v, %v", reply, err)
	}
	if _, err := spill("a", 1); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a short key: %v", err)
	}
	for _, from := range []string{"b", "c"} {
		if _, err := spill(from, 0); status.Code(err) != codes.PermissionDenied {
			t.Errorf("asked by %s: %v", from, err)
		}
	}
	m.Take(idle{})
	if _, err := spill("a", 0); status.Code(err) != codes.PermissionDenied {
		t.Errorf("work that keeps no key: %v", err)
	}
}
