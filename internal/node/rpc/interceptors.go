package rpc

import (
	"context"
	"log/slog"
	"path"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Recovering are the options of a server whose calls cannot end the agent: what a caller sends may
// lead to a panic that nobody thought of, and the other containers of this node must not pay for
// that.
func Recovering(log *slog.Logger) []grpc.ServerOption {
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

// recovered is deferred: it makes an error of a panic.
func recovered(log *slog.Logger, method string, err *error) {
	if reason := recover(); reason != nil {
		log.Error("panic in a call; this is a bug of godwit", "method", method, "reason", reason, "stack",
			string(debug.Stack()))
		*err = status.Errorf(codes.Internal, "%s: panic: %v", method, reason)
	}
}

// Noticing is the option of a server whose calls, as far as they are named, may have changed something. A
// call that only looks has not, and may come many times a second.
func Noticing(changes map[string]bool, changed func()) grpc.ServerOption {
	return grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler) (any, error) {
		if changes[path.Base(info.FullMethod)] {
			defer changed()
		}
		return handle(ctx, request)
	})
}
