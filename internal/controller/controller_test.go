package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cluster/clustertest"
	"github.com/godwit/godwit/internal/controller/decide"
	"github.com/godwit/godwit/internal/controller/executor"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/pinned"
)

// world is a controller that leads, with nodes that can join.
type world struct {
	kept    *store.Memory
	cluster *cluster
	address string
	stop    func()
	ahead   atomic.Int64 // how far the controller's clock is ahead
}

// start makes a controller lead, as lead does but for the socket.
func start(t *testing.T, kept *store.Memory) *world {
	t.Helper()
	return startWith(t, kept, defaultBounds())
}

func startWith(t *testing.T, kept *store.Memory, b bounds) *world {
	t.Helper()
	term, err := kept.Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c, err := openCluster(ctx, Config{Store: kept, Limits: executor.DefaultLimits(), AuditDir: t.TempDir(),
		Log: slog.New(slog.DiscardHandler)}, b, term)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{kept: kept, cluster: c}
	c.now = func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }
	pair, err := c.keyPair(ctx)
	if err != nil {
		t.Fatal(err)
	}
	certificate, fingerprint, err := pinned.Parse(pair)
	if err != nil {
		t.Fatal(err)
	}
	c.tokens.fingerprint = fingerprint
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, looped := newServer(c, certificate), make(chan error, 1)
	go func() { looped <- c.loop(ctx) }()
	go func() { _ = server.Serve(listener) }()
	w.address = listener.Addr().String()
	w.stop = func() {
		cancel()
		server.Stop()
		<-looped
		if err := term.Resign(context.Background()); err != nil {
			t.Error(err)
		}
	}
	return w
}

func (w *world) token(t *testing.T, kind, name string) pinned.Token {
	t.Helper()
	return w.create(t, &api.CreateTokenRequest{Kind: kind, Name: name})
}

func (w *world) create(t *testing.T, request *api.CreateTokenRequest) pinned.Token {
	t.Helper()
	text, err := w.cluster.tokens.create(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	token, err := pinned.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// dial connects as a node, or as nobody.
func (w *world) dial(t *testing.T, id *identity.Identity) *grpc.ClientConn {
	t.Helper()
	config := pinned.ClientConfig(w.cluster.tokens.fingerprint, nil)
	if id != nil {
		config = pinned.ClientConfig(w.cluster.tokens.fingerprint, id.Certificate)
	}
	client, err := grpc.NewClient("passthrough:///"+w.address,
		grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func (w *world) join(t *testing.T, id *identity.Identity) {
	t.Helper()
	_, err := api.NewUplinkClient(w.dial(t, id)).Join(t.Context(),
		&api.UplinkJoinRequest{Token: w.token(t, "node", "").Secret()})
	if err != nil {
		t.Fatal(err)
	}
}

// user makes calls with a token.
func (w *world) user(t *testing.T) (context.Context, api.ControllerClient) {
	t.Helper()
	return w.named(t, "anna")
}

func (w *world) named(t *testing.T, name string) (context.Context, api.ControllerClient) {
	t.Helper()
	return w.withRole(t, name, "")
}

func (w *world) withRole(t *testing.T, name, role string) (context.Context, api.ControllerClient) {
	t.Helper()
	secret := w.create(t, &api.CreateTokenRequest{Kind: "user", Name: name, Role: role}).Secret()
	return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secret),
		api.NewControllerClient(w.dial(t, nil))
}

// agent is a node's stream.
type agent struct {
	stream grpc.BidiStreamingClient[api.Up, api.Down]
	epoch  uint64
	close  func()
}

func (w *world) connect(t *testing.T, id *identity.Identity, containers ...*api.NodeContainer) *agent {
	t.Helper()
	return w.connectParts(t, id, &api.Up{State: &api.NodeState{FreeBytes: 8 << 30, Containers: containers}})
}

// connectParts connects a node whose state comes in parts.
func (w *world) connectParts(t *testing.T, id *identity.Identity, parts ...*api.Up) *agent {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := api.NewUplinkClient(w.dial(t, id)).Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range parts {
		if err := stream.Send(one); err != nil {
			t.Fatal(err)
		}
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return &agent{stream, first.Epoch, cancel}
}

func (a *agent) command(t *testing.T) *api.Command {
	t.Helper()
	down, err := a.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return down.Command
}

func (a *agent) says(t *testing.T, command, state, why string) {
	t.Helper()
	if err := a.stream.Send(&api.Up{Outcome: &api.Outcome{Command: command, State: state,
		Error: why}}); err != nil {
		t.Fatal(err)
	}
}

func container(letter string) *api.NodeContainer {
	return &api.NodeContainer{Id: strings.Repeat(letter, 64), Name: "name-" + letter, State: running,
		MemoryBytes: 1 << 20}
}

func nodes(t *testing.T, names ...string) (all []*identity.Identity) {
	t.Helper()
	for _, one := range clustertest.New(t, names...) {
		all = append(all, one.ID)
	}
	return all
}

func eventually(t *testing.T, what string, is func() error) {
	t.Helper()
	var err error
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
		if err = is(); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: %v", what, err)
}

// TestDrain drains a node, loses the controller in the middle, and looks at what a second leader does: it
// repeats the command with its own epoch, and moves nothing twice.
func TestDrain(t *testing.T) {
	ids := nodes(t, "a", "b")
	w := start(t, store.NewMemory())
	w.join(t, ids[0])
	w.join(t, ids[1])
	a := w.connect(t, ids[0], container("1"))
	w.connect(t, ids[1])
	ctx, user := w.user(t)
	if _, err := user.SetNode(ctx, &api.SetNodeRequest{Node: "a", State: "draining",
		BringBack: true}); err != nil {
		t.Fatal(err)
	}
	first := a.command(t)
	if first.Node != "b" || first.Generation != 1 || first.Epoch != a.epoch || first.Mode != "auto" {
		t.Fatalf("command %v", first)
	}
	w.stop() // before the agent has answered
	w = start(t, w.kept)
	defer w.stop()
	a = w.connect(t, ids[0], container("1"))
	b := w.connect(t, ids[1])
	second := a.command(t)
	if second.Id != first.Id || second.Generation != 1 || second.Epoch <= first.Epoch {
		t.Fatalf("command %v after %v", second, first)
	}
	if err := b.stream.Send(&api.Up{Delta: &api.Delta{
		Containers: []*api.NodeContainer{container("1")}}}); err != nil {
		t.Fatal(err)
	}
	a.says(t, second.Id, "moved", "")
	ctx, user = w.user(t)
	eventually(t, "the container at b", func() error {
		reply, err := user.ClusterContainers(ctx, &api.ClusterContainersRequest{})
		if err != nil || len(reply.Containers) != 1 || reply.Containers[0].Node != "b" {
			return fmt.Errorf("%v, %v", reply, err)
		}
		return nil
	})
	if reply, err := user.Intents(ctx, &api.IntentsRequest{}); err != nil || len(reply.Intents) != 1 ||
		reply.Intents[0].State != "moved" || !strings.Contains(reply.Intents[0].Reason, "anna drains a") {
		t.Errorf("intents %v, %v", reply, err)
	}
	if _, err := user.SetNode(ctx, &api.SetNodeRequest{Node: "a", State: "active"}); err != nil {
		t.Fatal(err)
	}
	if back := b.command(t); back.Node != "a" || back.Generation != 2 || back.Container != first.Container {
		t.Errorf("command %v", back)
	}
}

// TestTwoHaveIt: a container that two nodes say they run is moved from neither, and does not keep others from
// being moved.
func TestTwoHaveIt(t *testing.T) {
	ids := nodes(t, "a", "b", "c")
	w := start(t, store.NewMemory())
	defer w.stop()
	for _, id := range ids {
		w.join(t, id)
	}
	w.connect(t, ids[2])
	w.connect(t, ids[1], container("1"))
	a := w.connect(t, ids[0], container("1"), container("2"))
	ctx, user := w.user(t)
	for _, node := range []string{"a", "b"} {
		if _, err := user.SetNode(ctx, &api.SetNodeRequest{Node: node, State: "draining"}); err != nil {
			t.Fatal(err)
		}
	}
	if only := a.command(t); only.Container != container("2").Id {
		t.Errorf("command %v", only)
	}
	reply, err := user.ClusterNodes(ctx, &api.ClusterNodesRequest{})
	if err != nil || reply.Nodes[0].Containers != 2 || reply.Nodes[1].Containers != 1 {
		t.Errorf("nodes %v, %v", reply, err)
	}
	if reply, err := user.Intents(ctx, &api.IntentsRequest{}); err != nil || len(reply.Intents) != 1 {
		t.Errorf("intents %v, %v", reply, err)
	}
}

// TestStillThere: a node that a container has not left for good is not empty.
func TestStillThere(t *testing.T) {
	for _, one := range []struct {
		state  string
		moving bool
		want   int32
	}{
		{"exited", false, 0}, {"created", false, 0}, {"running", false, 1}, {"frozen", false, 1},
		{"exited", true, 1},
	} {
		told := container("1")
		told.State, told.Moving = one.state, one.moving
		live := &liveNode{}
		live.containers = map[string]*api.NodeContainer{told.Id: told}
		c := &cluster{live: map[string]*liveNode{"a": live}, queue: executor.NewQueue(executor.Limits{})}
		if got := c.describeNode("a").Containers; got != one.want {
			t.Errorf("%+v: %d containers", one, got)
		}
	}
	c := &cluster{live: map[string]*liveNode{}, queue: executor.NewQueue(executor.Limits{})}
	c.queue.Add(executor.Job{ID: "1", Container: container("1").Id, From: "a", To: "b", Sent: true})
	if got := c.describeNode("a").Containers; got != 1 {
		t.Errorf("%d containers while a move has not ended", got)
	}
}

// TestStaleness: a queued move ends when its reason is gone, and not while a node may only be restarting.
func TestStaleness(t *testing.T) {
	const active, drain, user = store.Active, decide.Drain, decide.User
	now := time.Now()
	here := container("1")
	connected := func(all ...*api.NodeContainer) *liveNode {
		n := &liveNode{session: &session{}}
		n.take(&api.NodeState{Containers: all})
		return n
	}
	away := func(since time.Duration) *liveNode { return &liveNode{since: now.Add(-since)} }
	stopped := container("1")
	stopped.State = "exited"
	for name, one := range map[string]struct {
		from, to *liveNode
		state    store.NodeState
		cause    decide.Cause
		sent     bool
		want     string
	}{
		"wanted":              {connected(here), connected(), active, drain, false, ""},
		"left":                {connected(), connected(), active, user, false, "does not run at a"},
		"stopped":             {connected(stopped), connected(), active, drain, false, "does not run"},
		"sent":                {connected(), connected(), active, drain, true, ""},
		"source away":         {away(time.Hour), connected(), active, drain, false, ""},
		"target away":         {connected(here), away(time.Hour), active, drain, false, "b is not"},
		"target restarts":     {connected(here), away(time.Second), active, drain, false, ""},
		"new leader":          {connected(here), nil, active, drain, false, ""},
		"a user waits for it": {connected(here), away(time.Hour), active, user, false, ""},
		"target drained":      {connected(here), connected(), store.Draining, drain, false, "b takes no"},
	} {
		c := &cluster{now: func() time.Time { return now }, began: now}
		c.live = map[string]*liveNode{"a": one.from}
		if one.to != nil {
			c.live["b"] = one.to
		}
		c.state.Nodes = map[string]store.Node{"a": {Name: "a", State: store.Draining},
			"b": {Name: "b", State: one.state}}
		c.state.Intents = map[string]store.Intent{"1": {ID: "1", Cause: string(one.cause)}}
		job := executor.Job{ID: "1", Container: here.Id, From: "a", To: "b", Sent: one.sent}
		if got := c.staleness(job); !strings.Contains(got, one.want) || (got == "") != (one.want == "") {
			t.Errorf("%s: %q, want %q", name, got, one.want)
		}
	}
}

// leader makes a leader of an empty cluster, without a loop and a server.
func leader(t *testing.T) *cluster {
	t.Helper()
	kept := store.NewMemory()
	term, err := kept.Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = term.Resign(context.Background()) })
	c, err := openCluster(t.Context(), Config{Store: kept, Limits: executor.DefaultLimits(),
		Log: slog.New(slog.DiscardHandler), AuditDir: t.TempDir()}, defaultBounds(), term)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDrainEndedByEarlierLeader: a leader that was lost between the end of a drain and the end of its intents
// leaves no move behind that nobody wants.
func TestDrainEndedByEarlierLeader(t *testing.T) {
	c := leader(t)
	c.state.Nodes = map[string]store.Node{"a": {Name: "a", State: store.Active},
		"b": {Name: "b", State: store.Active}}
	for _, one := range []store.Intent{
		{ID: "queued", Cause: string(decide.Drain), State: store.Queued},
		{ID: "sent", Cause: string(decide.Drain), State: store.Sent},
		{ID: "user", Cause: string(decide.User), State: store.Queued},
	} {
		one.Container, one.From, one.To = one.ID, "a", "b"
		c.state.Intents[one.ID] = one
		c.queue.Add(jobOf(one))
	}
	if err := c.dropStale(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.state.Intents["queued"]; got.State != store.Failed || got.Error != "the drain was ended" {
		t.Errorf("%+v", got)
	}
	for _, id := range []string{"sent", "user"} {
		if got := c.state.Intents[id]; got.State.Ended() {
			t.Errorf("%+v", got)
		}
	}
	if left := len(c.queue.All()); left != 2 {
		t.Errorf("%d jobs are left", left)
	}
}

// TestStaleAllEnd: however many moves are stale, none of them is left to begin.
func TestStaleAllEnd(t *testing.T) {
	c := leader(t)
	for i := range 3*batch + 1 {
		one := store.Intent{ID: fmt.Sprint(i), Container: fmt.Sprint(i), From: "a", To: "b",
			Cause: string(decide.Drain), State: store.Queued}
		c.state.Intents[one.ID] = one
		c.queue.Add(jobOf(one))
	}
	if err := c.dropStale(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := len(c.queue.All()); left != 0 {
		t.Errorf("%d of the moves are left", left)
	}
}

// TestSurplus: the latest ended intents are kept, however many have not ended.
func TestSurplus(t *testing.T) {
	c := &cluster{state: store.State{Intents: map[string]store.Intent{}}}
	for i := range keepIntents + 2 {
		for id, state := range map[string]store.IntentState{"e": store.Moved, "q": store.Queued} {
			id += fmt.Sprint(i)
			c.state.Intents[id] = store.Intent{ID: id, State: state, EndedAt: time.Unix(int64(i), 0)}
		}
	}
	if got := c.surplus(); !slices.Equal(got, []string{"e0", "e1"}) {
		t.Errorf("%d intents need not be kept, want the 2 oldest", len(got))
	}
}

// TestCut: a text that is cut in the middle of a letter can still be sent.
func TestCut(t *testing.T) {
	if got := cut(strings.Repeat("x", maxTextBytes-1) + "é"); !utf8.ValidString(got) {
		t.Errorf("%q", got[maxTextBytes-4:])
	}
}

// TestMove: a user moves a container, and hears how it ends.
func TestMove(t *testing.T) {
	ids := nodes(t, "a", "b")
	w := start(t, store.NewMemory())
	defer w.stop()
	w.join(t, ids[0])
	w.join(t, ids[1])
	a := w.connect(t, ids[0], container("1"), container("2"))
	ctx, user := w.user(t)
	for request, want := range map[*api.MoveRequest]string{
		{Container: "name-1", Node: "b"}:               "b is not connected",
		{Container: "name-1", Node: "c"}:               "not known",
		{Container: "name-3", Node: "b"}:               "no running container",
		{Container: "name-1", Node: "a"}:               "it is there already",
		{Container: "name-1", Node: "b", Mode: "warp"}: "warp",
	} {
		if _, err := user.Move(ctx, request); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", request, err, want)
		}
	}
	w.connect(t, ids[1])
	made, err := user.Move(ctx, &api.MoveRequest{Container: "name-1@a", Node: "b", Mode: "cold"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := user.Move(ctx, &api.MoveRequest{Container: "name-1", Node: "b"}); err == nil ||
		!strings.Contains(err.Error(), "being moved already") {
		t.Errorf("a second move: %v", err)
	}
	command := a.command(t)
	if command.Id != made.Intent.Id || command.Mode != "cold" {
		t.Fatalf("command %v", command)
	}
	a.says(t, command.Id, "begun", "")
	a.says(t, command.Id, "failed", "no such luck")
	stream, err := user.WatchIntent(ctx, &api.WatchIntentRequest{Id: command.Id})
	if err != nil {
		t.Fatal(err)
	}
	for {
		one, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if one.EndedUnixNanoseconds != 0 {
			if one.State != "failed" || one.Error != "no such luck" {
				t.Errorf("it ended as %v", one)
			}
			return
		}
	}
}

// TestWhoMayCall: nobody without the right token or certificate changes anything.
func TestWhoMayCall(t *testing.T) {
	ids, strangers := nodes(t, "a", "b"), nodes(t, "a", "b")
	w := start(t, store.NewMemory())
	defer w.stop()
	w.join(t, ids[0])
	used, other := w.token(t, "node", ""), w.token(t, "node", "c")
	join := func(id *identity.Identity, secret string) error {
		_, err := api.NewUplinkClient(w.dial(t, id)).Join(t.Context(), &api.UplinkJoinRequest{Token: secret})
		return err
	}
	if err := join(ids[0], used.Secret()); err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		id     *identity.Identity
		secret string
		want   string
	}{
		"a spent token":        {ids[1], used.Secret(), "has been used"},
		"another node's token": {ids[1], other.Secret(), "the token is for the node c"},
		"no token":             {ids[1], "", "does not know this token"},
		"a user's token":       {ids[1], w.token(t, "user", "x").Secret(), "does not know this token"},
		"another cluster":      {strangers[0], w.token(t, "node", "").Secret(), "another cluster"},
		"no certificate":       {nil, w.token(t, "node", "").Secret(), "showed no certificate"},
	} {
		if err := join(test.id, test.secret); status.Code(err) != codes.PermissionDenied ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, id := range map[string]*identity.Identity{"not joined": ids[1], "a stranger": strangers[0],
		"nobody": nil} {
		stream, err := api.NewUplinkClient(w.dial(t, id)).Connect(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", what, err)
		}
	}
	user := api.NewControllerClient(w.dial(t, nil))
	for what, given := range map[string]string{
		"no token": "", "a wrong token": "Bearer AAAA", "a node's token": "Bearer " + other.Secret(),
	} {
		ctx := t.Context()
		if given != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", given)
		}
		if _, err := user.SetNode(ctx, &api.SetNodeRequest{Node: "a", State: "draining"}); status.Code(err) !=
			codes.Unauthenticated && status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", what, err)
		}
	}
	early := w.token(t, "node", "")
	w.ahead.Store(int64(time.Hour))
	if err := join(ids[1], early.Secret()); err == nil || !strings.Contains(err.Error(),
		"expired") {
		t.Errorf("an expired token: %v", err)
	}
	if w.cluster.state.Nodes["a"].State != store.Active || len(w.cluster.state.Nodes) != 1 {
		t.Errorf("nodes %v", w.cluster.state.Nodes)
	}
}

// TestStoreIsLost: what cannot be made durable does not happen.
func TestStoreIsLost(t *testing.T) {
	ids := nodes(t, "a")
	w := start(t, store.NewMemory())
	defer w.stop()
	w.join(t, ids[0])
	ctx, user := w.user(t)
	if err := w.cluster.records.term.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := user.SetNode(ctx, &api.SetNodeRequest{Node: "a", State: "draining"}); err == nil ||
		w.cluster.state.Nodes["a"].State != store.Active {
		t.Errorf("changed without a leader: %v", err)
	}
	if err := w.cluster.round(ctx); err != nil && !errors.Is(err, store.ErrNotLeader) {
		t.Error(err)
	}
}

func FuzzCheckUp(f *testing.F) {
	for _, seed := range []*api.Up{
		{State: &api.NodeState{Containers: []*api.NodeContainer{container("1")}}},
		{Delta: &api.Delta{Gone: []string{"x"}, Containers: []*api.NodeContainer{container("2")}}},
	} {
		data, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var up api.Up
		if proto.Unmarshal(data, &up) != nil {
			return
		}
		live := &liveNode{}
		if checkState(up.State) == nil {
			live.take(up.State)
		} else {
			live.take(&api.NodeState{})
		}
		if up.Delta != nil && checkDelta(up.Delta) == nil {
			live.change(up.Delta)
		}
		bytes := 0
		for _, one := range live.containers {
			bytes += proto.Size(one)
		}
		if live.bytes != bytes {
			t.Errorf("%d bytes are counted, and there are %d", live.bytes, bytes)
		}
		for id, one := range live.containers {
			if one == nil || migration.CheckContainerID(id) != nil || one.MemoryBytes < 0 {
				t.Errorf("container %v", one)
			}
		}
	})
}
