package agent

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
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
	a := newTestAgent(t)
	const reports, length = 50, 100 << 10
	for number := range reports {
		ended(t, a, number+1, func(r *migration.Record) { r.Error = strings.Repeat("x", length) })
	}
	var sent sizes
	if err := newLocalService(a).Migrations(&api.MigrationsRequest{}, &sent); err != nil {
		t.Fatal(err)
	}
	if sent.count != reports || sent.total < maxMessage || sent.largest >= maxMessage {
		t.Errorf("%d messages, the largest of %d bytes, %d bytes in all", sent.count, sent.largest,
			sent.total)
	}
}
