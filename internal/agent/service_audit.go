package agent

import (
	"context"
	"time"

	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/migration"
)

// cutOff is the outcome of a session that ended before its migration did.
const cutOff = "cut off"

// auditSession logs the outcome of a migration that another node has offered, after the session's end. The
// migration may end a little later.
func (a *Agent) auditSession(ctx context.Context, offer *api.Offer, m *move, failed error) {
	entry := audit.Entry{Time: time.Now().UTC(), Method: "Session", Object: offer.GetMigration()}
	if m == nil {
		entry.Outcome, entry.Error = status.Code(failed).String(), plain(failed)
		a.calls.Keep(ctx, entry)
		return
	}
	patience, cancel := context.WithTimeout(a.ctx, a.config.peerTimeout())
	defer cancel()
	_ = waitFor(patience, m.done) // the outcome tells
	record := m.record()
	entry.Object += " (" + record.Spec.Name + ")"
	entry.Outcome, entry.Error = string(record.Result), record.Error
	if record.Result == migration.ResultRuns {
		entry.Outcome = cutOff
	}
	a.calls.Keep(ctx, entry)
}
