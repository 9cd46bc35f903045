package controller

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/intake"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/wire/pinned"
)

// TestTooManyCalls: a user who calls too often gets a clear answer, and neither changes anything nor keeps
// others out.
func TestTooManyCalls(t *testing.T) {
	ids := nodes(t, "a")
	b := defaultBounds()
	b.users = intake.Rate{PerSecond: 0.001, Burst: 5}
	w := startWith(t, store.NewMemory(), b)
	defer w.stop()
	w.join(t, ids[0])
	ctx, user := w.user(t)
	for range 5 {
		if _, err := user.ClusterNodes(ctx, &api.ClusterNodesRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	var wrong sync.Map
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 250 {
				_, err := user.SetNode(ctx, &api.SetNodeRequest{Node: "a", State: "draining"})
				if status.Code(err) != codes.ResourceExhausted ||
					!strings.Contains(status.Convert(err).Message(), "user anna makes too many calls") {
					wrong.Store(fmt.Sprint(err), true)
				}
			}
		})
	}
	all.Wait()
	wrong.Range(func(err, _ any) bool { t.Errorf("answer %v", err); return true })
	other, _ := w.named(t, "ben")
	reply, err := user.ClusterNodes(other, &api.ClusterNodesRequest{})
	if err != nil || reply.Nodes[0].State != "active" {
		t.Errorf("another user: %v, %v", reply, err)
	}
}

// TestStrangersAreBounded: somebody without a token has few connections, for a short time, and few calls; the
// nodes and users that are connected go on.
func TestStrangersAreBounded(t *testing.T) {
	ids := nodes(t, "a")
	b := defaultBounds()
	b.connections = intake.Limits{Strangers: 50, StrangersPerHost: 4, Patience: 2 * time.Second, Refusals: 3}
	w := startWith(t, store.NewMemory(), b)
	defer w.stop()
	w.join(t, ids[0])
	w.connect(t, ids[0])
	ctx, user := w.user(t)
	if _, err := user.ClusterNodes(ctx, &api.ClusterNodesRequest{}); err != nil {
		t.Fatal(err)
	}
	config := pinned.ClientConfig(w.cluster.tokens.fingerprint, nil)
	config.NextProtos = []string{"h2"}
	open := func() net.Conn {
		conn, err := tls.Dial("tcp", w.address, config)
		if err != nil {
			return nil
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	var first net.Conn
	eventually(t, "more connections to be closed", func() error {
		opened := open()
		if first == nil {
			first = opened
		}
		if opened != nil {
			return fmt.Errorf("a connection was accepted")
		}
		return nil
	})
	if first == nil {
		t.Fatal("no connection of a stranger is accepted")
	}
	if _, err := io.Copy(io.Discard, first); err != nil { // until the controller closes it
		t.Logf("the stranger's connection ended: %v", err)
	}
	reply, err := user.ClusterNodes(ctx, &api.ClusterNodesRequest{})
	if err != nil || !reply.Nodes[0].Connected {
		t.Errorf("a user and a node that were known: %v, %v", reply, err)
	}
	stranger := api.NewControllerClient(w.dial(t, nil))
	eventually(t, "calls that are always refused to end the connection", func() error {
		_, err := stranger.ClusterNodes(t.Context(), &api.ClusterNodesRequest{})
		if status.Code(err) != codes.ResourceExhausted {
			return err
		}
		return nil
	})
}

// TestLargeMessages: nobody can make the controller keep a large message.
func TestLargeMessages(t *testing.T) {
	ids := nodes(t, "a")
	w := start(t, store.NewMemory())
	defer w.stop()
	ctx, user := w.user(t)
	large := strings.Repeat("x", maxMessageBytes)
	if _, err := user.Move(ctx, &api.MoveRequest{Container: large}); status.Code(err) !=
		codes.ResourceExhausted {
		t.Errorf("a large call: %v", err)
	}
	if _, err := api.NewUplinkClient(w.dial(t, ids[0])).Join(t.Context(),
		&api.UplinkJoinRequest{Token: large}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a stranger's large call: %v", err)
	}
}

// TestNodeTellsTooMuch: a node that tells more than the controller keeps is refused with the reason, which
// people see, too. Its state in parts that fits is taken.
func TestNodeTellsTooMuch(t *testing.T) {
	ids := nodes(t, "a")
	b := defaultBounds()
	b.node = said{containers: 3, links: 1, bytes: 2000}
	b.nodes.Burst = 1000
	w := startWith(t, store.NewMemory(), b)
	defer w.stop()
	w.join(t, ids[0])
	labelled := container("4")
	labelled.Labels = map[string]string{}
	for i := range 4 {
		labelled.Labels[fmt.Sprint("godwit.", i)] = strings.Repeat("x", 600)
	}
	wrong := container("5")
	wrong.Id = "../x"
	part := func(more bool, all ...*api.NodeContainer) *api.Up {
		return &api.Up{Delta: &api.Delta{Containers: all, More: more}}
	}
	client := api.NewUplinkClient(w.dial(t, ids[0]))
	link := func(node string) *api.NodeLink { return &api.NodeLink{Node: node, BitsPerSecond: 1e9} }
	first := func(more bool, all ...*api.NodeContainer) *api.Up {
		return &api.Up{State: &api.NodeState{Containers: all, More: more}}
	}
	for what, one := range map[string]struct {
		told []*api.Up
		code codes.Code
		want string
	}{
		"containers": {[]*api.Up{first(false, container("1"), container("2"), container("3"),
			container("4"))}, codes.ResourceExhausted,
			"4 containers in 0 KiB and of 0 links; the limits are 3, 1 KiB and 1"},
		"bytes": {[]*api.Up{first(false, labelled)}, codes.ResourceExhausted, "1 containers in 2 KiB"},
		"parts": {[]*api.Up{first(true, container("1"), container("2")), part(true, container("3")),
			part(false, container("4"))}, codes.ResourceExhausted, "4 containers"},
		"links": {[]*api.Up{{State: &api.NodeState{Links: []*api.NodeLink{link("b"), link("c")}}}},
			codes.ResourceExhausted, "2 links"},
		"later": {[]*api.Up{first(false, container("1")), part(false, container("2"), container("3"),
			container("4"))}, codes.ResourceExhausted, "4 containers"},
		"no state":      {[]*api.Up{part(false)}, codes.InvalidArgument, "has no state"},
		"no part":       {[]*api.Up{first(true), {}}, codes.InvalidArgument, "state is missing"},
		"a wrong part":  {[]*api.Up{first(true), part(false, wrong)}, codes.InvalidArgument, "container id"},
		"a wrong state": {[]*api.Up{first(false, wrong)}, codes.InvalidArgument, "container id"},
	} {
		stream, err := client.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, message := range one.told {
			if err := stream.Send(message); err != nil {
				break // the answer says why
			}
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != one.code || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%s: %v, want %q", what, err, one.want)
		}
		ctx, user := w.user(t)
		eventually(t, what+": the reason beside the node", func() error {
			reply, err := user.ClusterNodes(ctx, &api.ClusterNodesRequest{})
			if err != nil || !strings.Contains(strings.Join(reply.Nodes[0].Obstacles, " "), one.want) {
				return fmt.Errorf("%v, %v", reply, err)
			}
			return nil
		})
	}
	w.connectParts(t, ids[0], first(true, container("1")), part(true, container("2")),
		part(false, container("3")))
	ctx, user := w.user(t)
	reply, err := user.ClusterNodes(ctx, &api.ClusterNodesRequest{})
	if err != nil || reply.Nodes[0].Containers != 3 || len(reply.Nodes[0].Obstacles) > 0 {
		t.Errorf("%v, %v", reply, err)
	}
}

// quiet is a stream on which nothing happens.
type quiet struct {
	grpc.ServerStream
	ctx context.Context
}

func (q quiet) Context() context.Context { return q.ctx }

// TestPanic: a panic of a call is its error, which shows nothing of it, and the log names the call.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	c := &callers{log: slog.New(slog.NewTextHandler(&log, nil))}
	_, err := c.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x/Move"}, nil)
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "nil pointer") {
		t.Errorf("answer %v", err)
	}
	err = c.stream(nil, quiet{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/x/Watch"}, nil)
	if status.Code(err) != codes.Internal {
		t.Errorf("answer %v", err)
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: intake.AuthInfo{}})
	if _, err := c.admit(ctx, &tap.Info{FullMethodName: "/x/Join"}); status.Code(err) != codes.Internal {
		t.Errorf("answer %v", err)
	}
	for _, want := range []string{"method=/x/Move", "method=/x/Watch", "method=/x/Join", "nil pointer"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, log.String())
		}
	}
}
