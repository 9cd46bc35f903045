package agent

import (
	"context"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/migration"
)

// recovering are the options of a server whose calls cannot end the agent: what a caller sends may
// lead to a panic that nobody thought of, and the other containers of this node must not pay for
// that.
func recovering(log *slog.Logger) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
			handle grpc.UnaryHandler) (reply any, err error) {
			defer recovered(log, info.FullMethod, &err)
			return handle(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			handle grpc.StreamHandler) (err error) {
			defer recovered(log, info.FullMethod, &err)
			return handle(server, stream)
		}),
	}
}

// logPanic writes the stack of a panic that a migration has failed by.
func (a *Agent) logPanic(err error) { guard.LogPanic(a.log, err) }

// tellOnce logs an error, unless it is what was told last.
func (a *Agent) tellOnce(told inventory.Told, what string, err error) {
	if told.News(what, err) && a.ctx.Err() == nil {
		a.log.Warn(what, "error", err)
	}
}

// guarded is do for a goroutine of its own, which nobody waits for: a panic is logged.
func (a *Agent) guarded(do func()) func() { return guard.Logged(a.log, do) }

// guarded is do for a goroutine of its own. A panic breaks the migration off, as the loss of the peer does:
// what the migration has done so far decides how it ends.
func (m *move) guarded(do func()) func() {
	return m.agent.guarded(func() {
		err := guard.Do(func() error {
			do()
			return nil
		})
		if err != nil {
			m.broken(err)
		}
	})
}

// broken breaks the migration off after a panic beside it.
func (m *move) broken(err error) {
	m.agent.logPanic(err)
	m.tell(migration.PeerLost{Error: err.Error()})
}

// recovered is deferred: it makes an error of a panic.
func recovered(log *slog.Logger, method string, err *error) {
	if reason := recover(); reason != nil {
		log.Error("panic in a call; this is a bug of godwit", "method", method, "reason", reason, "stack",
			string(debug.Stack()))
		*err = status.Errorf(codes.Internal, "%s: panic: %v", method, reason)
	}
}
