package agent

import (
	"context"
	"path"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/access"
)

// noticing is the option of the local server: a user's call that is audited may have changed containers of
// the node's own engine. One that only looks has not, and may come many times a second.
func noticing(changed func()) grpc.ServerOption {
	changes := access.Audited()
	return grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler) (any, error) {
		if changes[path.Base(info.FullMethod)] {
			defer changed()
		}
		return handle(ctx, request)
	})
}
