package location

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/wire/identity"
)

// membersOf are members that can all be reached.
func membersOf(names ...string) Members {
	var nodes []identity.Node
	for _, name := range names {
		nodes = append(nodes, identity.Node{Name: name})
	}
	return Members{
		Others:  func() []identity.Node { return nodes },
		Reaches: func(string) bool { return true },
		Log:     slog.New(slog.DiscardHandler),
	}
}

// TestElsewhere asks other nodes for a container that was seen here, or was not.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	d := engine.Definition{ID: strings.Repeat("0", 64), Name: "web"}
	for _, c := range []struct {
		name         string
		members      []string
		down         string // cannot be reached
		says         string // of c
		fails        error  // of c
		seen, unseen string // why it is refused; "": it is not
	}{
		{name: "alone"},
		{name: "nobody has it", members: []string{"c", "d"}},
		{name: "c has it", members: []string{"c", "d"}, says: "it is exited", seen: "node c has",
			unseen: "node c has"},
		{name: "d is down", members: []string{"c", "d"}, down: "d", unseen: "node d cannot say"},
		{name: "d was removed", members: []string{"c"}, down: "d"},
		{name: "c fails", members: []string{"c", "d"}, fails: errors.New("broken"), unseen: "broken"},
	} {
		n := membersOf(c.members...)
		n.Reaches = func(node string) bool { return node != c.down }
		n.Presence = func(_ context.Context, node identity.Node, _ string) (string, error) {
			if node.Name == "c" {
				return c.says, c.fails
			}
			return "", nil
		}
		for seen, want := range map[bool]string{true: c.seen, false: c.unseen} {
			err := n.Elsewhere(t.Context(), d, seen)
			if (err == nil) != (want == "") || err != nil &&
				(!errors.Is(err, ErrElsewhere) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, seen %t: %v, want %q", c.name, seen, err, want)
			}
		}
	}
}

// TestElsewhereMoving: a container that moves from a node that was not asked yet to one that was is
// found all the same.
func TestElsewhereMoving(t *testing.T) {
	t.Parallel()
	n := membersOf("c", "d")
	at := "d"
	moved := make(chan struct{})
	n.Presence = func(_ context.Context, node identity.Node, _ string) (string, error) {
		if node.Name == "d" { // it answers last, when the container has gone to c
			<-moved
		}
		if node.Name == at {
			return "it is running", nil
		}
		if node.Name == "c" {
			at = "c"
			select {
			case <-moved:
			default:
				close(moved)
			}
		}
		return "", nil
	}
	if err := n.Elsewhere(t.Context(), engine.Definition{Name: "web"}, false); !errors.Is(err, ErrElsewhere) {
		t.Errorf("c has it: %v", err)
	}
}

// TestUnreached lists the members that cannot be asked. One that is not asked for a container counts as if it
// had it, also if asking panics.
func TestUnreached(t *testing.T) {
	m := membersOf("c", "d", "e")
	m.Reaches = func(node string) bool { return node != "d" }
	if missing := m.Unreached(); !slices.Equal(missing, []string{"d"}) {
		t.Errorf("missing: %q", missing)
	}
	m = membersOf("c")
	m.Presence = func(context.Context, identity.Node, string) (string, error) { panic("on purpose") }
	if err := m.Elsewhere(t.Context(), engine.Definition{Name: "web"}, true); !errors.Is(err, ErrElsewhere) {
		t.Errorf("a panic: %v", err)
	}
}

// TestMayOverrule: a node that answers with an error has the last word; one that cannot be asked does not.
func TestMayOverrule(t *testing.T) {
	for code, there := range map[codes.Code]bool{
		codes.Unavailable: false, codes.DeadlineExceeded: false, codes.Unimplemented: false,
		codes.Unknown: true, codes.PermissionDenied: true,
	} {
		m := membersOf("c")
		m.Presence = func(context.Context, identity.Node, string) (string, error) {
			return "", status.Error(code, "broken")
		}
		err := m.Elsewhere(t.Context(), engine.Definition{Name: "web"}, false)
		if !errors.Is(err, ErrElsewhere) || errors.Is(err, ErrThere) != there {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// node answers what it has of a container.
type node struct {
	api.UnimplementedPeerServer
	has string
}

func (n node) Presence(_ context.Context, request *api.PresenceRequest) (*api.PresenceReply, error) {
	if request.Container != "one" {
		return &api.PresenceReply{}, nil
	}
	return &api.PresenceReply{State: n.has}, nil
}

// TestPresence asks a node, one of an older version, and one to which there is no connection.
func TestPresence(t *testing.T) {
	ask := func(server api.PeerServer, container string) (string, error) {
		listener, serves := bufconn.Listen(1<<16), grpc.NewServer()
		api.RegisterPeerServer(serves, server)
		go func() { _ = serves.Serve(listener) }()
		defer serves.Stop()
		client, err := grpc.NewClient("passthrough:c",
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return listener.DialContext(ctx)
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		connect := Connect(func(ctx context.Context, _ identity.Node) (*grpc.ClientConn, context.Context,
			context.CancelFunc, error) {
			return client, ctx, func() {}, nil
		})
		return connect.Presence(t.Context(), identity.Node{Name: "c"}, container)
	}
	if state, err := ask(node{has: "it is running"}, "one"); err != nil || state != "it is running" {
		t.Errorf("%q, %v", state, err)
	}
	if state, err := ask(node{has: "it is running"}, "two"); err != nil || state != "" {
		t.Errorf("another container: %q, %v", state, err)
	}
	if _, err := ask(api.UnimplementedPeerServer{}, "one"); err == nil ||
		!strings.Contains(err.Error(), "older version") {
		t.Errorf("an older version: %v", err)
	}
	down := errors.New("no connection")
	connect := Connect(func(context.Context, identity.Node) (*grpc.ClientConn, context.Context,
		context.CancelFunc, error) {
		return nil, nil, nil, down
	})
	if _, err := connect.Presence(t.Context(), identity.Node{}, "one"); !errors.Is(err, down) {
		t.Errorf("no connection: %v", err)
	}
}
