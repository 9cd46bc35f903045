package rpc

import (
	"encoding/json"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
)

// AuditService answers for the record of calls.
type AuditService struct{ Calls Calls }

// Calls of users and other nodes are recorded. See access.Record.
type Calls interface {
	Read(since time.Time, each func(audit.Entry) error) error
}

// Audit streams the entries of the audit log.
func (s *AuditService) Audit(request *api.AuditRequest,
	stream grpc.ServerStreamingServer[api.AuditReply]) error {
	since := time.Time{}
	if request.SinceUnixNanoseconds > 0 {
		since = time.Unix(0, request.SinceUnixNanoseconds)
	}
	err := s.Calls.Read(since, func(entry audit.Entry) error {
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
