package agent

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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

// Audit streams the entries of the audit log.
func (s *localService) Audit(request *api.AuditRequest,
	stream grpc.ServerStreamingServer[api.AuditReply]) error {
	since := time.Time{}
	if request.SinceUnixNanoseconds > 0 {
		since = time.Unix(0, request.SinceUnixNanoseconds)
	}
	err := s.agent.calls.Read(since, func(entry audit.Entry) error {
		document, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		return stream.Send(&api.AuditReply{EntryJson: document})
	})
	if err != nil {
		return status.Error(codes.Unknown, err.Error())
	}
	return nil
}
