package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/cluster/clustertest"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/reserve"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/transfer/kept"
	"github.com/godwit/godwit/internal/wire/identity"
)

// newTestAgent makes what of an agent needs no kernel: node b, which knows node a.
func newTestAgent(t *testing.T) *Agent {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	a := &Agent{
		config: Config{StateDir: t.TempDir(), RunDir: t.TempDir()}, log: slog.New(slog.DiscardHandler),
		ctx: ctx, stop: stop,
		reservations: reserve.New(),
		residuals:    residual.New(residual.Config{}),
		engines:      engine.NewSet((*embedded.Engine)(nil)), // nobody asks it
		embedded:     &embedded.Engine{},
		network:      &network.Network{},
	}
	var err error
	if a.images, err = image.Open(a.config.StateDir); err != nil {
		t.Fatal(err)
	}
	if a.kept, err = kept.New(kept.Config{StateDir: a.config.StateDir, Keep: kept.DefaultKeep,
		Log: a.log}); err != nil {
		t.Fatal(err)
	}
	a.id = clustertest.New(t, "a", "b")[1].ID
	a.self = a.id.Node
	saved := []identity.Node{{Name: "a", Number: 1, Address: "192.0.2.1:7443"}}
	if err := identity.SaveNodes(a.config.StateDir, saved); err != nil {
		t.Fatal(err)
	}
	if a.peers, err = a.newPeers(); err != nil {
		t.Fatal(err)
	}
	a.spare = durable.NewSpare(a.config.StateDir)
	a.moves, a.lists, a.leases = newMoves(a), newLists(a), newLeases(a)
	openAttachments(a, nil)
	a.stages, a.stagedCopies = a.newStages(), a.newStagedCopies()
	if a.placements, err = a.openPlacements(); err != nil {
		t.Fatal(err)
	}
	a.admission = newAdmission(a)
	return a
}

const testMigration = "0123456789abcdef"

// TestUnreadJournalIsNotOverwritten: of a migration whose journal cannot be read nobody knows
// whether it ran. To say that it never did would let it run twice.
func TestUnreadJournalIsNotOverwritten(t *testing.T) {
	a := newTestAgent(t)
	record, err := migration.Banned(testMigration, "a", "b", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	record.Version++
	record.ReadableFrom++
	written := a.moves.journal(testMigration, engine.Definition{})
	if err := written.Write(record); err != nil {
		t.Fatal(err)
	}
	if err := a.moves.recover(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(written.Dir + "/journal.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.moves.find(testMigration); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("find: %v, want busy", err)
	}
	if err := a.moves.ban(testMigration, "a"); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("ban: %v, want busy", err)
	}
	after, err := os.ReadFile(written.Dir + "/journal.json")
	if err != nil || string(after) != string(before) {
		t.Errorf("the journal was overwritten: %s, error %v", after, err)
	}
	unread := a.moves.unread.List()
	if len(unread) != 1 || unread[0].Report().Source != "a" ||
		!strings.Contains(*unread[0].Report().Error, "format") {
		t.Fatalf("unreadable: %+v", unread)
	}

	record.Version--
	record.ReadableFrom--
	if err := written.Write(record); err != nil {
		t.Fatal(err)
	}
	a.moves.recoverOne(testMigration)
	if _, err := a.moves.find(testMigration); err != nil || len(a.moves.unread.List()) > 0 {
		t.Errorf("not recovered when the journal could be read: %v", err)
	}
}

func TestBanIsDurable(t *testing.T) {
	a := newTestAgent(t)
	if err := a.moves.ban(testMigration, "a"); err != nil {
		t.Fatal(err)
	}
	again := newMoves(a)
	if err := again.recover(); err != nil {
		t.Fatal(err)
	}
	m, err := again.find(testMigration)
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(m.since); age < 0 || age > time.Hour {
		t.Errorf("it is known since %s", m.since)
	}
	answer, err := m.step(migration.Asked{})
	if err != nil || answer == nil || answer.Kind != migration.KindNeverRan {
		t.Fatalf("answer %v, error %v; want never-ran", answer, err)
	}
	m.tell(migration.Received{Message: migration.Message{Kind: migration.KindConfirm}}) // does not panic
}
