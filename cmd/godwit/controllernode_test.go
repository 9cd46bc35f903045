package main

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/pinned"
)

// testController drains a node, and answers what it is told to answer about the nodes.
type testController struct {
	api.UnimplementedControllerServer
	drained atomic.Int32 // how often
	node    *api.ClusterNode
	lost    bool // it stops leading after the drain
}

func (c *testController) SetNode(context.Context, *api.SetNodeRequest) (*api.ClusterNode, error) {
	c.drained.Add(1)
	return &api.ClusterNode{Name: "a", State: "draining", Containers: 1, Connected: true}, nil
}

func (c *testController) ClusterNodes(context.Context, *api.ClusterNodesRequest) (*api.ClusterNodesReply,
	error) {
	if c.lost {
		return nil, status.Error(codes.Unavailable, "it does not lead any more")
	}
	return &api.ClusterNodesReply{Nodes: []*api.ClusterNode{c.node}}, nil
}

// TestDrainWaitsAtTheNextController checks that, if the controller is lost while godwit waits for a drain,
// godwit asks the next one how the drain goes, and does not drain the node again: a user may have ended
// the drain.
func TestDrainWaitsAtTheNextController(t *testing.T) {
	pair, err := pinned.NewCertificate("controller.godwit", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, fingerprint, err := pinned.Parse(pair)
	if err != nil {
		t.Fatal(err)
	}
	token, err := pinned.NewToken(fingerprint)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	first := &testController{lost: true}
	second := &testController{node: &api.ClusterNode{Name: "a", State: "active", Containers: 1}}
	var addresses []string
	for _, one := range []*testController{first, second} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(grpc.Creds(credentials.NewTLS(pinned.ServerConfig(certificate))))
		api.RegisterControllerServer(server, one)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		addresses = append(addresses, listener.Addr().String())
	}
	root := newRootCommand()
	root.SetArgs([]string{"node", "drain", "a", "--wait", "--controller", strings.Join(addresses, ","),
		"--controller-token", path})
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(io.Discard)
	if err := root.ExecuteContext(t.Context()); err != nil || out.String() != "Node a: active, 1 containers "+
		"run there.\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if first, second := first.drained.Load(), second.drained.Load(); first != 1 || second != 0 {
		t.Errorf("the first controller drained the node %d times, and the second %d times", first, second)
	}
}
