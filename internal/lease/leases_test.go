package lease

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

var (
	ours   = netip.MustParseAddr("10.88.1.2")
	theirs = netip.MustParseAddr("10.88.2.2")
)

// pool is a network in which the third byte of an address is the number of its node.
type pool struct {
	leases   []network.Lease
	released []string
	fails    error
}

func (p *pool) Home(address netip.Addr) (int, error) {
	if !netip.MustParsePrefix("10.88.0.0/16").Contains(address) {
		return 0, errors.New("not of the pool")
	}
	return int(address.As4()[2]), nil
}

func (p *pool) Leases() []network.Lease { return p.leases }

func (p *pool) ReleaseLease(container string) error {
	p.released = append(p.released, container)
	return p.fails
}

// nodes are one other node, b, which answers what the test says, once for each answer, and then agrees.
type nodes struct {
	api.UnimplementedPeerServer
	client *grpc.ClientConn
	down   error

	mu      sync.Mutex
	answers []error
	asked   []string
}

func newNodes(t *testing.T, answers ...error) *nodes {
	t.Helper()
	n := &nodes{answers: answers}
	listener, server := bufconn.Listen(1<<16), grpc.NewServer()
	api.RegisterPeerServer(server, n)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	var err error
	n.client, err = grpc.NewClient("passthrough:b", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.client.Close() })
	return n
}

func (n *nodes) Release(_ context.Context, request *api.ReleaseRequest) (*api.ReleaseReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, request.Address+" "+request.Container)
	if len(n.answers) == 0 {
		return &api.ReleaseReply{}, nil
	}
	answer := n.answers[0]
	n.answers = n.answers[1:]
	return &api.ReleaseReply{}, answer
}

func (n *nodes) ByNumber(number int) (string, bool) { return "b", number == 2 }

func (n *nodes) Find(name string) (identity.Node, error) { return identity.Node{Name: name}, n.down }

func (n *nodes) Client(identity.Node) (*grpc.ClientConn, error) { return n.client, nil }

func newLeases(t *testing.T, p *pool, n *nodes) *Leases {
	t.Helper()
	return New(t.Context(), Config{
		Path: filepath.Join(t.TempDir(), "releases.json"), Self: 1, Network: p, Nodes: n,
		Gone: func(engine.Definition) {}, Timeout: time.Minute, Every: time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
	})
}

func of(address netip.Addr) engine.Definition {
	return engine.Definition{ID: "one", Network: engine.Network{Address: address}}
}

// noted waits until so many releases are noted.
func noted(t *testing.T, l *Leases, count int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		all, err := l.notes.list()
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == count {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("noted: %v, want %d", all, count)
		}
	}
}

func TestWhoseAddress(t *testing.T) {
	l := newLeases(t, &pool{leases: []network.Lease{{Container: "one", Address: ours}}}, nil)
	if !l.AtHome(ours) || l.AtHome(theirs) || l.AtHome(netip.MustParseAddr("192.0.2.1")) {
		t.Error("an address is at home at the wrong node")
	}
	if l.Of(ours) != "one" || l.Of(theirs) != "" {
		t.Errorf("leased to %q and %q", l.Of(ours), l.Of(theirs))
	}
}

// TestGiveBack: an address stays noted until its node has taken it back, or will never do so.
func TestGiveBack(t *testing.T) {
	later := status.Error(codes.FailedPrecondition, "another node has it")
	for name, c := range map[string]struct {
		answers []error
		asked   int
	}{
		"at once":  {nil, 1},
		"later":    {[]error{later, later}, 3},
		"refused":  {[]error{status.Error(codes.PermissionDenied, "no")}, 1},
		"mistaken": {[]error{status.Error(codes.InvalidArgument, "no")}, 1},
	} {
		n := newNodes(t, c.answers...)
		l := newLeases(t, &pool{}, n)
		gone := make(chan string, 1)
		l.config.Gone = func(definition engine.Definition) { gone <- definition.ID }
		if err := l.GiveBack(of(theirs)); err != nil {
			t.Fatal(err)
		}
		noted(t, l, 0)
		n.mu.Lock()
		if len(n.asked) != c.asked || n.asked[0] != "10.88.2.2 one" || <-gone != "one" {
			t.Errorf("%s: asked %q, want %d times", name, n.asked, c.asked)
		}
		n.mu.Unlock()
	}
}

// TestRepeat: what could not be given back is given back when its node is there again, and at that node only.
func TestRepeat(t *testing.T) {
	n := newNodes(t, status.Error(codes.Internal, "its disk is full"))
	l := newLeases(t, &pool{}, n)
	for _, todo := range []release{{Address: theirs, Container: "one"}, {Container: "being made"}} {
		if err := l.notes.change(todo.Container, &todo); err != nil {
			t.Fatal(err)
		}
	}
	n.down = errors.New("not reached")
	l.Repeat("b")
	noted(t, l, 2)
	n.down = nil
	l.Repeat("b") // fails there
	noted(t, l, 2)
	l.Repeat("c")
	noted(t, l, 2)
	l.Repeat("b")
	noted(t, l, 1)
	if want := []string{"10.88.2.2 one", "10.88.2.2 one"}; !slices.Equal(n.asked, want) {
		t.Errorf("asked %q", n.asked)
	}
}

// TestUnknownNode: an address whose node nobody knows stays noted.
func TestUnknownNode(t *testing.T) {
	n := newNodes(t)
	l := newLeases(t, &pool{}, n)
	err := l.callRelease(release{Address: netip.MustParseAddr("10.88.3.2")})
	if err == nil || len(n.asked) > 0 {
		t.Errorf("%v, asked %q", err, n.asked)
	}
}

// own is an engine that has one container.
type own struct{ has string }

func (o own) Inspect(_ context.Context, container string) (engine.Container, error) {
	switch container {
	case o.has:
		return engine.Container{}, nil
	case "damaged":
		return engine.Container{}, errors.New("cannot be read")
	}
	return engine.Container{}, engine.ErrNotFound
}

// TestTakeBack: the address of a container that was never made comes back; while the engine cannot say
// whether it was made, it does not.
func TestTakeBack(t *testing.T) {
	p := &pool{}
	l := newLeases(t, p, newNodes(t))
	for _, container := range []string{"made", "never made", "damaged", "done"} {
		if err := l.Making(container); err != nil {
			t.Fatal(err)
		}
	}
	l.Made("done")
	l.TakeBack(t.Context(), own{"made"})
	if !slices.Equal(p.released, []string{"never made"}) {
		t.Errorf("released %q", p.released)
	}
	noted(t, l, 1)
	p.fails = errors.New("no")
	if err := l.Making("again"); err != nil {
		t.Fatal(err)
	}
	l.TakeBack(t.Context(), own{})
	noted(t, l, 2)
}
