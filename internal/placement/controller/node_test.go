package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
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
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

// fakeNode is node a with a container, in a cluster with b and c, which answer by node itself.
type fakeNode struct {
	api.UnimplementedPeerServer

	client *grpc.ClientConn

	mu        sync.Mutex
	container engine.Container
	away      error  // the container's engine
	refused   error  // nothing may be done with the container
	moving    bool   // the container
	staged    string // the node where it is staged
	brought   *Arrival
	began     []string // stages
	memory    int64
	bandwidth float64
	silent    map[string]bool // nodes that cannot be reached
	counts    map[string]int  // of calls
	keeps     *api.KeepReply
	followed  *api.FollowRequest
	refusal   error // of a policy that is handed over
}

func newFakeNode(t *testing.T) *fakeNode {
	t.Helper()
	n := &fakeNode{memory: 1 << 20, bandwidth: 1e9, silent: map[string]bool{}, counts: map[string]int{},
		keeps: &api.KeepReply{}}
	n.container.Definition = engine.Definition{ID: testContainer, Name: "web", Layers: []string{"one", "two"}}
	n.container.State = engine.Running
	listener, server := bufconn.Listen(1<<16), grpc.NewServer()
	api.RegisterPeerServer(server, n)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	var err error
	n.client, err = grpc.NewClient("passthrough:node",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.client.Close() })
	return n
}

// config is what the node gives a controller.
func (n *fakeNode) config(t *testing.T) Config {
	t.Helper()
	return Config{
		Dir: t.TempDir(), Node: "a", Containers: n, Migrations: n, Stages: n, Nodes: others{n}, Links: n,
		Samples: samples{n}, Layers: n, CallTimeout: time.Minute, Log: slog.New(slog.DiscardHandler),
		Speed: func() predict.Machine {
			return predict.Machine{Cores: 1, PageBytesPerSecond: 1e9, CompressBytesPerSec: 1e9}
		},
	}
}

func (n *fakeNode) count(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counts[what]++
}

func (n *fakeNode) Inspect(_ context.Context, reference string) (engine.Container, error) {
	_, id, named := strings.Cut(reference, ":")
	if !named {
		id = reference
	}
	switch {
	case n.away != nil:
		return engine.Container{}, n.away
	case id != n.container.Definition.ID && id != n.container.Definition.Name:
		return engine.Container{}, fmt.Errorf("container %.12s: %w", id, engine.ErrNotFound)
	}
	return n.container, nil
}

func (n *fakeNode) Find(ctx context.Context, reference string) (engine.Container, error) {
	return n.Inspect(ctx, reference)
}

func (n *fakeNode) Idle(ctx context.Context, reference string) (engine.Container, error) {
	found, err := n.Inspect(ctx, reference)
	return found, errors.Join(err, n.refused)
}

func (n *fakeNode) MemoryBytes(context.Context, string) (int64, error) { return n.memory, nil }

func (n *fakeNode) Busy() bool { return false }

func (n *fakeNode) Moving(string) bool { return n.moving }

func (n *fakeNode) BroughtBy(string) *Arrival { return n.brought }

func (n *fakeNode) Begin(_ context.Context, _, node string, _ migration.StageSettings,
	_ time.Duration) (Live, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.began = append(n.began, node)
	return &fakeStage{node: node, world: &fakeWorld{idle: map[string]int64{}}}, nil
}

func (n *fakeNode) Target(string) string { return n.staged }

func (n *fakeNode) Others() []identity.Node { return []identity.Node{{Name: "b"}, {Name: "c"}} }

// Measure measures a link.
func (n *fakeNode) Measure(_ context.Context, node identity.Node) error {
	n.count("link " + node.Name)
	return errors.New("too slow")
}

// others are the nodes that a fakeNode knows.
type others struct{ *fakeNode }

func (others) Find(name string) (identity.Node, error) {
	if len(name) != 1 || name > "c" {
		return identity.Node{}, fmt.Errorf("%w: no such node: %s", api.ErrRefused, name)
	}
	return identity.Node{Name: name}, nil
}

func (n *fakeNode) Reaches(node string) bool { return !n.silent[node] }

func (n *fakeNode) Client(identity.Node) (*grpc.ClientConn, error) { return n.client, nil }

func (n *fakeNode) WayTo(string) predict.Link {
	return predict.Link{RTTSeconds: 0.001, BandwidthBitsPerSecond: 1e8}
}

func (n *fakeNode) Link(string) (time.Duration, float64) { return time.Millisecond, n.bandwidth }

// samples measure the container of a fakeNode.
type samples struct{ *fakeNode }

func (s samples) Look(context.Context, engine.Definition) (predict.Measured, error) {
	s.count("look")
	return predict.Measured{Container: predict.Container{PrivateBytes: s.memory, Ratio: 1,
		Curve: predict.Curve{{Seconds: 1, Bytes: 1000}, {Seconds: 60, Bytes: 60000}}}}, nil
}

func (s samples) Measure(context.Context, engine.Definition, time.Duration, time.Duration) predict.Measured {
	s.count("measure")
	return predict.Measured{}
}

// Ask answers that a node has the first layer.
func (n *fakeNode) Ask(context.Context, identity.Node, *api.LayersRequest) ([]*api.Layer, error) {
	n.count("ask")
	return []*api.Layer{{DiffId: "one"}}, nil
}

func (n *fakeNode) Here(diffIDs []string) (here []*api.Layer) {
	for _, id := range diffIDs {
		here = append(here, &api.Layer{DiffId: id, StoredBytes: 1 << 30})
	}
	return here
}

func (n *fakeNode) Keep(_ context.Context, request *api.KeepRequest) (*api.KeepReply, error) {
	n.count("keep")
	if request.Seconds == 0 {
		return &api.KeepReply{}, nil
	}
	return n.keeps, nil
}

func (n *fakeNode) Follow(_ context.Context, request *api.FollowRequest) (*api.FollowReply, error) {
	n.followed = request
	return &api.FollowReply{}, n.refusal
}

// openTest opens a controller whose followers do nothing by themselves.
func openTest(t *testing.T, config Config) *Controller {
	t.Helper()
	c, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	c.world = &fakeWorld{where: isMoving, idle: map[string]int64{}}
	t.Cleanup(c.Close)
	return c
}

func nearest(n int32) *api.StageAheadRequest {
	return &api.StageAheadRequest{Container: "web", Nearest: n}
}

// path is a request for copies along a path, so many seconds from now.
func path(stops ...any) *api.StageAheadRequest {
	request := &api.StageAheadRequest{Container: "web"}
	for i := 0; i < len(stops); i += 2 {
		deadline := time.Now().Add(time.Duration(stops[i+1].(float64) * float64(time.Second)))
		request.Path = append(request.Path, &api.Stop{Node: stops[i].(string),
			DeadlineUnixNanoseconds: deadline.UnixNano()})
	}
	return request
}

// TestPlaceRefuses: what makes no sense is refused before anything is written down.
func TestPlaceRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		request *api.StageAheadRequest
		change  func(n *fakeNode)
		is      error
		says    string
	}{
		"nothing wanted": {nearest(0), nil, api.ErrInvalid, "give a path or a number of neighbours"},
		"unknown node":   {path("x", 60.0), nil, api.ErrRefused, "no such node"},
		"own node":       {path("a", 60.0), nil, api.ErrRefused, ""},
		"deadline past":  {path("b", -60.0), nil, api.ErrInvalid, "is past"},
		"kept too long": {&api.StageAheadRequest{Container: "web", Nearest: 1, KeepSeconds: 1e12}, nil,
			api.ErrInvalid, ""},
		"budget too small": {&api.StageAheadRequest{Container: "web", Nearest: 1, BudgetBytes: 1 << 10}, nil,
			api.ErrRefused, "one copy of web takes 2 MiB"},
		"no such container": {&api.StageAheadRequest{Container: "db", Nearest: 1}, nil,
			engine.ErrNotFound, ""},
		"stopped": {nearest(1), func(n *fakeNode) { n.container.State = engine.Exited },
			engine.ErrNotRunning, "web is exited; only a running container can be staged"},
		"moving": {nearest(1), func(n *fakeNode) { n.refused = engine.ErrBusy }, engine.ErrBusy, ""},
		"staged by hand": {nearest(1), func(n *fakeNode) { n.staged = "b" }, engine.ErrBusy,
			`"godwit stage rm web b" first`},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			n := newFakeNode(t)
			if c.change != nil {
				c.change(n)
			}
			controller := openTest(t, n.config(t))
			_, err := controller.Place(t.Context(), c.request)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v", err)
			}
			if left, err := os.ReadDir(controller.dir); len(left) > 0 || err != nil {
				t.Errorf("written down: %v, %v", left, err)
			}
		})
	}
}

// TestPlaceAndUnplace: a policy is described, keeps its container from being staged by hand, and ends.
func TestPlaceAndUnplace(t *testing.T) {
	n := newFakeNode(t)
	c := openTest(t, n.config(t))
	if err := c.Free(t.Context(), "web"); err != nil {
		t.Error(err)
	}
	if err := c.Unplace(t.Context(), "web"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("unplaced without a policy: %v", err)
	}
	if placed, err := c.LeaveOut(t.Context(), "web", "b"); placed || err != nil {
		t.Errorf("left out without a policy: %t, %v", placed, err)
	}
	list, err := c.Place(t.Context(), path("b", 100.0, "c", 200.0))
	if err != nil || len(list) != 2 || list[0].Target != "b" || list[0].Placement == nil ||
		list[0].Placement.Why != migration.PlacementPath || list[0].Container != "web" {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := c.Free(t.Context(), "web"); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("staged by hand, too: %v", err)
	}
	live := migration.Stage{Kind: migration.StagedCopy, ContainerID: testContainer, Target: "b",
		State: migration.StageReady, SentBytes: 7}
	other := migration.Stage{Kind: migration.StagedCopy, ContainerID: "other", Target: "b"}
	told := c.Describe([]migration.Stage{live, other})
	if len(told) != 3 || told[0].State != migration.StageReady || told[0].Placement == nil ||
		told[1].State != migration.StageWaiting ||
		told[2].ContainerID != "other" || told[2].Placement != nil {
		t.Errorf("%+v", told)
	}
	if placed, err := c.LeaveOut(t.Context(), "web", "x"); !placed || !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("left out a node that is not on the path: %t, %v", placed, err)
	}
	if placed, err := c.LeaveOut(t.Context(), "web", "b"); !placed || err != nil ||
		len(c.Describe(nil)) != 1 {
		t.Errorf("left out: %t, %v, %+v", placed, err, c.Describe(nil))
	}
	if err := c.Unplace(t.Context(), "web"); err != nil || len(c.Describe(nil)) != 0 {
		t.Errorf("%v, %+v", err, c.Describe(nil))
	}
}

// TestLeaveOutNeighbour: a user cannot name a neighbour that shall have no copy.
func TestLeaveOutNeighbour(t *testing.T) {
	n := newFakeNode(t)
	c := openTest(t, n.config(t))
	if _, err := c.Place(t.Context(), nearest(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.LeaveOut(t.Context(), "web", "b"); !errors.Is(err, api.ErrRefused) {
		t.Errorf("error %v", err)
	}
}

// TestOpen: the next agent goes on with what it can read, and serves in spite of the rest.
func TestOpen(t *testing.T) {
	n := newFakeNode(t)
	config := n.config(t)
	c := openTest(t, config)
	if _, err := c.Place(t.Context(), nearest(1)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	broken := strings.Repeat("cd", 32)
	for name, content := range map[string]string{
		broken + ".json": "{", strings.Repeat("ef", 32) + ".json": `{"policy":{"container":"x"}}`,
		"note.json": "{}", "note.txt": "",
	} {
		if err := os.WriteFile(config.Dir+"/"+name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again := openTest(t, config)
	again.Begin()
	if list := again.list(); len(list) != 1 || list[0].container != testContainer {
		t.Errorf("%d policies", len(list))
	}
	if _, err := os.Stat(config.Dir + "/" + broken + ".json"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that cannot be read is kept: %v", err)
	}
	config.Dir += "/note.txt"
	if _, err := Open(t.Context(), config); err == nil {
		t.Error("policies without a directory")
	}
}

// TestReturns: a residual copy and an idle one are worth what the policy says.
func TestReturns(t *testing.T) {
	n := newFakeNode(t)
	c := openTest(t, n.config(t))
	if c.ResidualTime(testContainer, "a") != 0 || c.AgeAt(testContainer, "b") != 0 {
		t.Error("without a policy")
	}
	c.Left(testContainer, "b", testMigration, placement.Copy{}) // no policy: nothing to do
	if _, err := c.Place(t.Context(), path("b", 100.0, "a", 200.0)); err != nil {
		t.Fatal(err)
	}
	if c.ResidualTime(testContainer, "a") != idleFor || c.ResidualTime(testContainer, "c") != 0 {
		t.Error("residual copies")
	}
	f := c.of(testContainer)
	f.work.Lock()
	f.policy.Make("b").Fresh = time.Now().Add(-time.Minute)
	f.publish(f.policy, placement.Decision{})
	f.work.Unlock()
	if age := c.AgeAt(testContainer, "b"); age < time.Minute || age > time.Hour {
		t.Errorf("age %s", age)
	}
	if c.AgeAt(testContainer, "c") != 0 {
		t.Error("age of a copy that is not there")
	}
}

// TestFollow: only the node from which the container came may hand over its policy.
func TestFollow(t *testing.T) {
	n := newFakeNode(t)
	c := openTest(t, n.config(t))
	p := placement.Policy{Container: testContainer, Engine: "theirs", Nearest: 1,
		Until: time.Now().Add(time.Hour)}
	request := func() *api.FollowRequest {
		n.followed = nil
		if err := newObserver(c.config).follow(t.Context(), gone{"b", testMigration}, p); err != nil {
			t.Fatal(err)
		}
		return n.followed
	}()
	code := func(from string) codes.Code { return status.Code(c.Follow(t.Context(), from, request)) }
	if got := code("b"); got != codes.PermissionDenied {
		t.Errorf("never moved: %s", got)
	}
	n.brought = &Arrival{Migration: testMigration, Source: "b", Dir: t.TempDir(), Lock: &sync.Mutex{}}
	if got := code("c"); got != codes.PermissionDenied {
		t.Errorf("from another node: %s", got)
	}
	n.away = engine.ErrAway
	if got := code("b"); got != codes.Unavailable {
		t.Errorf("its engine is away: %s", got)
	}
	n.away, n.container.Definition.ID = nil, "another"
	if got := code("b"); got != codes.NotFound {
		t.Errorf("not here: %s", got)
	}
	n.container.Definition.ID, n.container.Definition.EngineName = testContainer, "docker"
	if got := code("b"); got != codes.OK || c.of(testContainer) == nil {
		t.Fatalf("not taken: %s", got)
	}
	if p := c.of(testContainer).snapshot(); p.Engine != "docker" || p.Nearest != 1 {
		t.Errorf("%+v", p)
	}
	n.brought.Migration = "another"
	if got := code("b"); got != codes.PermissionDenied {
		t.Errorf("after another migration: %s", got)
	}
	request.PolicyJson = []byte("{")
	if got := code("b"); got != codes.InvalidArgument {
		t.Errorf("not a policy: %s", got)
	}
}

// TestPolicyTakenOnce: what a user wants at the new node stays, if the policy that came with the
// container comes late, or again.
func TestPolicyTakenOnce(t *testing.T) {
	w, f := newTestPlacements(t, placement.Policy{Nearest: 1})
	w.where = isMoving // nothing is done by it
	s, theirs := f.owner, f.snapshot()
	theirs.Nearest = 3
	first := &Arrival{Dir: t.TempDir(), Lock: &sync.Mutex{}}
	if err := s.receive(first, theirs); err != nil || s.of(testContainer).snapshot().Nearest != 3 {
		t.Fatalf("not taken: %v", err)
	}
	ours := f.snapshot()
	ours.Nearest = 2
	if err := s.order(first, ours); err != nil {
		t.Fatal(err)
	}
	if err := s.receive(first, theirs); err != nil || s.of(testContainer).snapshot().Nearest != 2 {
		t.Errorf("it has replaced a newer one: %v", err)
	}
	s.of(testContainer).off(t.Context())
	if err := s.receive(first, theirs); err != nil || s.of(testContainer) != nil {
		t.Errorf("what was removed is back: %v", err)
	}
	second := &Arrival{Dir: t.TempDir(), Lock: &sync.Mutex{}}
	if err := s.order(second, ours); err != nil {
		t.Fatal(err)
	}
	if err := s.receive(second, theirs); err != nil || s.of(testContainer).snapshot().Nearest != 2 {
		t.Errorf("it was late, and has replaced what a user wants: %v", err)
	}
	lost := &Arrival{Dir: t.TempDir() + "/none", Lock: &sync.Mutex{}}
	if err := s.receive(lost, theirs); err == nil {
		t.Error("taken, and that cannot be noted")
	}
	s.Close()
}
