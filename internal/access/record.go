package access

import (
	"context"
	"log/slog"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/wire"
)

// Audited says for each method of the local service whether the audit log keeps its calls: it keeps those
// that change something or show a secret. Read-only calls would flood it.
func Audited() map[string]bool {
	return map[string]bool{
		"Version": false, "ListImages": false, "Wait": false, "List": false, "Inspect": false, "Top": false,
		"Volumes":       false,
		"InspectVolume": false, "Nodes": false, "Plan": false, "Watch": false, "Migrations": false,
		"Stages":    false,
		"LoadImage": true, "PullImage": true, "RemoveImage": true, "Run": true, "Start": true, "Stop": true,
		"Remove": true, "Logs": true,
		"Exec": true, "RemoveVolume": true, "Token": true, "RemoveNode": true, "PromoteNode": true,
		"DemoteNode": true,
		"Rollover":   true, "RolloverStatus": false, "Policy": false, "Audit": true, "Migrate": true,
		"Set":    true,
		"Switch": true, "Cancel": true, "Resolve": true, "Thaw": true,
		"Stage": true, "StageAhead": true, "Unstage": true,
	}
}

// AuditedOfNodes is the same for the service for other nodes. Greetings and periodic questions of nodes
// would flood the log; Session writes its entry itself, because its outcome is the migration's.
func AuditedOfNodes() map[string]bool {
	return map[string]bool{
		"Hello": false, "Prove": false, "Session": false, "Durable": false, "Layers": false, "Keep": false,
		"Presence": false,
		"Tell":     true, "Outcome": true, "Release": true, "Fetch": true, "Removed": true, "Follow": true,
		"Spill": true, "TakeAuthority": true, "DropAuthority": true,
	}
}

// Record keeps the calls of users and other nodes.
type Record struct {
	users, nodes *audit.Log
	log          *slog.Logger
}

// NewRecord keeps calls in two logs. It reports entries that cannot be written to log.
func NewRecord(users, nodes *audit.Log, log *slog.Logger) *Record {
	return &Record{users: users, nodes: nodes, log: log}
}

// Read reads both logs, in the order of time.
func (r *Record) Read(since time.Time, each func(audit.Entry) error) error {
	return audit.ReadBoth(r.users, r.nodes, since, each)
}

// Options returns server options that keep calls of some methods in the audit log.
func (r *Record) Options(keep map[string]bool) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
			handle grpc.UnaryHandler) (any, error) {
			reply, err := handle(ctx, request)
			if method := path.Base(info.FullMethod); keep[method] {
				r.audit(ctx, method, objectOf(request), err)
			}
			return reply, err
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			handle grpc.StreamHandler) error {
			method := path.Base(info.FullMethod)
			if !keep[method] {
				return handle(server, stream)
			}
			seen := &firstSeen{ServerStream: stream}
			err := handle(server, seen)
			r.audit(stream.Context(), method, seen.object(), err)
			return err
		}),
	}
}

// audit keeps one call. The call is over, so an entry that cannot be written does not fail it.
func (r *Record) audit(ctx context.Context, method, object string, failed error) {
	entry := audit.Entry{Time: time.Now().UTC(), Method: method, Object: object, Outcome: "ok"}
	if failed != nil {
		entry.Outcome, entry.Error = status.Code(failed).String(), api.Plain(failed)
	}
	r.Keep(ctx, entry)
}

// Keep adds the caller to an entry and writes it.
func (r *Record) Keep(ctx context.Context, entry audit.Entry) {
	log := r.nodes
	if caller, ok := grpcpeer.FromContext(ctx); ok {
		switch who := caller.AuthInfo.(type) {
		case Peer:
			log = r.users
			entry.UID, entry.GID, entry.PID = &who.UID, &who.GID, who.PID
		case wire.AuthInfo:
			entry.Node, entry.Address = who.Peer.Name, caller.Addr.String()
		}
	}
	if err := log.Append(entry); err != nil {
		r.log.Error("cannot write a call to the audit log", "method", entry.Method, "error", err)
	}
}

// objectOf returns the name that a request is about, and nothing else of the request.
func objectOf(request any) string {
	switch r := request.(type) {
	case *api.ExecInput:
		return r.GetStart().GetReference()
	case *api.RunRequest:
		return r.GetName()
	case *api.TokenRequest:
		return r.GetNode()
	case *api.MigrateRequest: // its migration is yet to begin
		return r.GetContainer()
	case interface{ GetReference() string }:
		return r.GetReference()
	case interface{ GetMigration() string }:
		return r.GetMigration()
	case interface{ GetContainer() string }:
		return r.GetContainer()
	case interface{ GetName() string }:
		return r.GetName()
	case *api.FetchRequest:
		return r.GetImage()
	}
	return ""
}

// firstSeen remembers the object of the first message of a stream.
type firstSeen struct {
	grpc.ServerStream
	mu    sync.Mutex
	known bool
	about string
}

// RecvMsg implements grpc.ServerStream.
func (s *firstSeen) RecvMsg(message any) error {
	err := s.ServerStream.RecvMsg(message)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && !s.known {
		s.known, s.about = true, objectOf(message)
	}
	return err
}

func (s *firstSeen) object() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.about
}
