package contentstore

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
)

// dialPatience bounds how long it takes to connect to a socket of this machine.
const dialPatience = 100 * time.Millisecond

// Dial makes a client of a containerd, which need not run. Each call connects anew: a client that waits
// longer after each failure would report a restarted containerd as missing, for up to two minutes.
func Dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a root's socket
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any,
			to *grpc.ClientConn, ask grpc.UnaryInvoker, options ...grpc.CallOption) error {
			connectAnew(ctx, to)
			return ask(ctx, method, request, reply, to, options...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, what *grpc.StreamDesc, to *grpc.ClientConn,
			method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			connectAnew(ctx, to)
			return open(ctx, what, to, method, options...)
		}))
}

// connectAnew makes a client that waits before its next connection attempt connect now. The client stays in
// this state until it has connected (gRPC, pick_first).
func connectAnew(ctx context.Context, to *grpc.ClientConn) {
	if to.GetState() != connectivity.TransientFailure {
		return
	}
	to.ResetConnectBackoff()
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	to.WaitForStateChange(ctx, connectivity.TransientFailure)
}
