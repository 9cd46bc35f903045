package rpc

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
)

// maxMessage is gRPC's default limit of a received message in bytes
// (google.golang.org/grpc, defaultClientMaxReceiveMessageSize).
const maxMessage = 4 << 20

// sizes notes the messages that a call sends.
type sizes struct {
	grpc.ServerStreamingServer[api.MigrationsReply]
	count, largest, total int
}

func (s *sizes) Context() context.Context { return context.Background() }

func (s *sizes) Send(reply *api.MigrationsReply) error {
	s.count++
	s.largest = max(s.largest, len(reply.ReportJson))
	s.total += len(reply.ReportJson)
	return json.Unmarshal(reply.ReportJson, &migration.Report{})
}

// TestManyLongReports lists reports that together exceed the largest message.
func TestManyLongReports(t *testing.T) {
	n := newNode(t)
	const reports, length = 50, 100 << 10
	for number := range reports {
		n.ended(t, number+1, func(r *migration.Record) { r.Error = strings.Repeat("x", length) })
	}
	var sent sizes
	if err := (&MigrationService{Moves: n.moves}).Migrations(&api.MigrationsRequest{}, &sent); err != nil {
		t.Fatal(err)
	}
	if sent.count != reports || sent.total < maxMessage || sent.largest >= maxMessage {
		t.Errorf("%d messages, the largest of %d bytes, %d bytes in all", sent.count, sent.largest,
			sent.total)
	}
}

// changing is work from this node whose settings can be changed.
type changing struct {
	idle
	changed, switched int
}

func (c *changing) Change(*api.SetRequest) error {
	c.changed++
	return nil
}

func (c *changing) Switch() error {
	c.switched++
	return api.ErrRefused
}

func (c *changing) Fresh() migrate.Work { return c }

// TestChangesOfAMigration: what leaves this node can be changed and cancelled, and what has ended cannot.
func TestChangesOfAMigration(t *testing.T) {
	n, work := newNode(t), &changing{}
	service := &MigrationService{Moves: n.moves}
	past := n.ended(t, 1, func(*migration.Record) {})
	set := func(id string) error {
		_, err := service.Set(t.Context(), &api.SetRequest{Migration: id})
		return err
	}
	if err := set(past); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a migration that has ended: %v", err)
	}
	if err := set("none"); status.Code(err) != codes.NotFound {
		t.Errorf("a migration that is not known: %v", err)
	}
	m := n.begun(t, migration.Source, work)
	if err := set(testMigration); err != nil || work.changed != 1 {
		t.Errorf("%v, %d changes", err, work.changed)
	}
	_, err := service.Switch(t.Context(), &api.MigrationRequest{Migration: testMigration})
	if status.Code(err) != codes.FailedPrecondition || work.switched != 1 {
		t.Errorf("%v, %d switches", err, work.switched)
	}
	if _, err := service.Cancel(t.Context(), &api.MigrationRequest{Migration: past}); err == nil {
		t.Error("a migration that has ended is cancelled")
	}
	m.Take(idle{})
	if err := set(testMigration); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a migration to this node: %v", err)
	}
	_, err = service.Resolve(t.Context(), &api.ResolveRequest{Migration: testMigration, RunsAt: "nowhere"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a decision for nowhere: %v", err)
	}
}

// TestWatch tells of a migration until its end.
func TestWatch(t *testing.T) {
	n := newNode(t)
	service := &MigrationService{Moves: n.moves}
	past := n.ended(t, 1, func(*migration.Record) {})
	watched := &replies[api.MigrationUpdate]{ctx: t.Context()}
	if err := service.Watch(&api.MigrationRequest{Migration: past}, watched); err != nil ||
		len(watched.sent) != 1 || watched.sent[0].ReportJson == nil {
		t.Errorf("%v: %v", err, watched.sent)
	}
	n.begun(t, migration.Source, idle{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	watched = &replies[api.MigrationUpdate]{ctx: gone}
	if err := service.Watch(&api.MigrationRequest{Migration: testMigration}, watched); err != nil ||
		len(watched.sent) != 1 || watched.sent[0].ProgressJson == nil {
		t.Errorf("%v: %v", err, watched.sent)
	}
}
