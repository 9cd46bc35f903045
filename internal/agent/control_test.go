package agent

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
)

// TestPlain tells errors in words that are about nodes.
func TestPlain(t *testing.T) {
	client, err := grpc.NewClient("passthrough:///nowhere",
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	_, closed := api.NewPeerClient(client).Hello(t.Context(), &api.HelloRequest{})
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "it ended"},
		{errors.New("of here"), "of here"},
		{status.Error(codes.NotFound, "no such container"), "no such container"},
		{status.FromContextError(context.Canceled).Err(), "context canceled"},
		{status.FromContextError(context.DeadlineExceeded).Err(), "it does not answer"},
		{closed, "it does not answer"},
	} {
		if got := plain(c.err); got != c.want {
			t.Errorf("%v is told as %q, want %q", c.err, got, c.want)
		}
	}
}
