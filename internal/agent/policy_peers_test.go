package agent

import (
	"context"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cluster/clustertest"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/policy"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// callFrom is the context of a call that a node makes.
func callFrom(t *testing.T, node string) context.Context {
	t.Helper()
	caller := wire.AuthInfo{Peer: identity.Peer{Name: node, Number: 2}}
	return grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: caller})
}

// fetchStream is the stream of a Fetch.
type fetchStream struct {
	grpc.ServerStreamingServer[api.FetchReply]
	ctx context.Context
}

func (f fetchStream) Context() context.Context { return f.ctx }

// TestThePolicyHoldsForLayers: a node from which nothing is accepted could fill the disk with image layers,
// and a node to which nothing is sent could read the layers of every image.
func TestThePolicyHoldsForLayers(t *testing.T) {
	all := clustertest.New(t, "a", "b")
	a, b := all[0].ID, all[1].ID
	agent := &Agent{here: here{id: a, self: a.Node, cores: 1}, log: slog.New(slog.DiscardHandler)}
	agent.config.StateDir = all[0].State
	var err error
	if agent.peers, err = newPeers(agent); err != nil {
		t.Fatal(err)
	}
	agent.engines = engine.NewSet((*embedded.Engine)(nil)) // nobody asks it
	agent.layers = newLayers(agent, nil)
	agent.config.Policy = policy.Policy{AcceptFrom: &[]string{"c"}, SendTo: &[]string{"c"}}
	service := newPeerService(agent)

	err = service.Fetch(&api.FetchRequest{}, fetchStream{ctx: callFrom(t, "b")})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("b has this node fetch layers: %v", err)
	}
	_, err = service.Layers(callFrom(t, "b"), &api.LayersRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("b asks which layers are here: %v", err)
	}
	if _, err := service.Layers(callFrom(t, "c"), &api.LayersRequest{}); err != nil {
		t.Errorf("c asks which layers are here: %v", err)
	}
	listener, err := wire.Listen(t.Context(), "127.0.0.1:0", wire.ListenOptions{Identity: a})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.AcceptData(t.Context())
		if err == nil {
			err = newDataServer(agent).Serve(t.Context(), conn)
		}
		served <- err
	}()
	conn, err := wire.Dial(t.Context(), b, listener.Addr().String(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hello := stream.Hello{Purpose: purposeLayers}
	if _, err := stream.Open(t.Context(), conn, hello, stream.Options{}); err == nil {
		t.Error("b gets a connection for layers")
		conn.Close()
	}
	if err := <-served; status.Code(err) != codes.PermissionDenied {
		t.Errorf("the connection for layers ended with %v", err)
	}
}
