package migrate

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestOutcome answers a source from the journal, and from what the engine has where there is none.
func TestOutcome(t *testing.T) {
	other := &otherEngine{has: engine.Definition{EngineName: "docker", ID: testContainer, Name: "web"}}
	n := newNode(t, &silent{}, other)
	moved := ended(t, n, 1, func(r *migration.Record) {
		r.Decision, r.Result = migration.Ran, migration.Moved
	})
	for name, c := range map[string]struct {
		from    string
		request *api.OutcomeRequest
		want    migration.MessageKind
	}{
		"it runs here": {"a", &api.OutcomeRequest{Migration: moved}, migration.KindRunning},
		"not known": {"a", &api.OutcomeRequest{Migration: testMigration, Incarnation: "here"},
			migration.KindNeverRan},
		"not known, of another state": {"a", &api.OutcomeRequest{Migration: "00000000000000aa",
			Incarnation: "elsewhere"}, migration.KindUnknown},
		"not known, but it runs": {"a", &api.OutcomeRequest{Migration: "00000000000000bb", Engine: "docker",
			Container: testContainer, Incarnation: "here"}, migration.KindUnknown},
	} {
		answer, err := n.moves.Outcome(t.Context(), c.from, c.request)
		if err != nil || answer.Kind != c.want || answer.Incarnation != "here" {
			t.Errorf("%s: %+v, %v; want %s", name, answer, err, c.want)
		}
	}
	if _, err := n.moves.Outcome(t.Context(), "c", &api.OutcomeRequest{Migration: moved}); status.Code(err) !=
		codes.PermissionDenied {
		t.Errorf("a node that takes no part: %v", err)
	}
	if _, err := n.moves.With("a", moved); err != nil {
		t.Error(err)
	}
	if record := n.moves.RecordOf(testMigration); record == nil || !record.NeverRuns() {
		t.Errorf("what was denied is not durable: %+v", record)
	}
	if record := n.moves.RecordOf("none"); record != nil {
		t.Errorf("%+v", record)
	}
}

// TestPresence: an engine that does not answer rules nothing out.
func TestPresence(t *testing.T) {
	other := &otherEngine{down: errFailed}
	n := newNode(t, &silent{}, other)
	sought := engine.Definition{EngineName: "docker", ID: testContainer}
	if found, _ := (outcomes{n.moves}).presence(t.Context(), sought); found != migration.Unlooked {
		t.Errorf("found %v", found)
	}
	other.down = nil
	if found, _ := (outcomes{n.moves}).presence(t.Context(), sought); found != migration.Absent {
		t.Errorf("found %v", found)
	}
	sought.EngineName = "none"
	if found, _ := (outcomes{n.moves}).presence(t.Context(), sought); found != migration.Absent {
		t.Errorf("found %v", found)
	}
	if err := (outcomes{n.moves}).contradicted(sought); errors.Is(err, errPutBack) {
		t.Error(err)
	}
}
