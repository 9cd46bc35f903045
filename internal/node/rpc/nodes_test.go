package rpc

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
)

// others are nodes a and b, of which a does not answer.
type others struct{}

func (others) Others() []identity.Node { return []identity.Node{{Name: "a"}, {Name: "b"}} }

func (others) Hello(_ context.Context, node identity.Node) error {
	if node.Name == "a" {
		return errFailed
	}
	return nil
}

func (others) Describe() []*api.Node { return []*api.Node{{Name: "a"}, {Name: "b"}} }

// TestNodes measures the links to nodes that answer.
func TestNodes(t *testing.T) {
	measured := make(chan string, 8)
	service := &NodeService{
		Self: identity.Node{Name: "c", Address: "192.0.2.3:7443"}, Agent: "v1", Peers: others{},
		Measure: func(_ context.Context, node identity.Node) error {
			measured <- node.Name
			return errFailed // is logged
		},
		Overlay:   func(node *api.Node) { node.Overlay = "vxlan" },
		Authority: func() (*identity.Authority, error) { return nil, errFailed },
		Elsewhere: func() string { return ": a" }, Log: slog.New(slog.DiscardHandler),
	}
	reply, err := service.Nodes(t.Context(), &api.NodesRequest{Measure: true})
	if err != nil || len(reply.Nodes) != 2 || reply.Nodes[1].Overlay != "vxlan" {
		t.Errorf("%v, %v", reply, err)
	}
	if len(measured) != 1 || <-measured != "b" {
		t.Error("a node that does not answer is measured")
	}
	if version, err := service.Version(t.Context(), nil); err != nil || version.Node != "c" ||
		version.Version != "v1" {
		t.Errorf("%v, %v", version, err)
	}
	if _, err := service.Token(t.Context(), &api.TokenRequest{}); err == nil ||
		!strings.HasSuffix(err.Error(), "promoted: a") {
		t.Errorf("a token of a node without the authority: %v", err)
	}
}

// neighbour answers for containers and addresses.
type neighbour struct {
	may bool
	err error
}

func (n neighbour) Answer(string, *api.HelloRequest) (*api.HelloReply, error) {
	return &api.HelloReply{}, n.err
}
func (n neighbour) MayRelease(string, netip.Addr) bool                { return n.may }
func (n neighbour) Release(context.Context, netip.Addr, string) error { return n.err }
func (n neighbour) Holding(context.Context, string) (state string, err error) {
	return "it runs", n.err
}

// TestNeighbour checks what other nodes say, and who may say it.
func TestNeighbour(t *testing.T) {
	id := strings.Repeat("ab", 32)
	service := func(n neighbour) *NeighbourService {
		return &NeighbourService{
			Self: "b", Greeted: n, Released: n, Presents: n,
			Forget: func(string, string) error { return n.err },
		}
	}
	good := service(neighbour{may: true})
	for name, c := range map[string]struct {
		service *NeighbourService
		request *api.ReleaseRequest
		want    codes.Code
	}{
		"released":   {good, &api.ReleaseRequest{Address: "10.88.1.2", Container: id}, codes.OK},
		"no address": {good, &api.ReleaseRequest{Address: "x", Container: id}, codes.InvalidArgument},
		"no id": {good, &api.ReleaseRequest{Address: "10.88.1.2", Container: "../x"},
			codes.InvalidArgument},
		"not its own": {service(neighbour{}), &api.ReleaseRequest{Address: "10.88.1.2", Container: id},
			codes.FailedPrecondition},
		"failed": {service(neighbour{may: true, err: errFailed}), &api.ReleaseRequest{Address: "10.88.1.2",
			Container: id}, codes.Unknown},
	} {
		if _, err := c.service.Release(callFrom(t, "a"), c.request); status.Code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if reply, err := good.Presence(t.Context(), &api.PresenceRequest{Container: id}); err != nil ||
		reply.State != "it runs" {
		t.Errorf("%v, %v", reply, err)
	}
	if _, err := good.Presence(t.Context(), &api.PresenceRequest{Container: "../x"}); status.Code(err) !=
		codes.InvalidArgument {
		t.Errorf("no id: %v", err)
	}
	_, hello := good.Hello(t.Context(), &api.HelloRequest{})
	_, removed := good.Removed(t.Context(), &api.RemovedRequest{})
	_, released := good.Release(t.Context(), &api.ReleaseRequest{})
	for _, err := range []error{hello, removed, released} {
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("a caller without a certificate: %v", err)
		}
	}
	if _, err := good.Removed(callFrom(t, "a"), &api.RemovedRequest{Container: id}); err != nil {
		t.Error(err)
	}
	if _, err := good.Hello(callFrom(t, "a"), &api.HelloRequest{}); err != nil {
		t.Error(err)
	}
}
