package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/store"
)

func (a *agent) next(t *testing.T) *api.Down {
	t.Helper()
	down, err := a.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return down
}

// ended waits until an intent has ended, and returns it.
func ended(t *testing.T, w *world, id string) *api.Intent {
	t.Helper()
	ctx, user := w.user(t)
	stream, err := user.WatchIntent(ctx, &api.WatchIntentRequest{Id: id[:8]})
	if err != nil {
		t.Fatal(err)
	}
	for {
		one, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if one.EndedUnixNanoseconds != 0 {
			return one
		}
	}
}

// TestCancelQueued: a move that waits is cancelled for good: neither its source nor the next leader hears of
// it, and a drain does not begin it again before the node is drained anew.
func TestCancelQueued(t *testing.T) {
	ids := nodes(t, "a", "b")
	w := start(t, store.NewMemory())
	w.join(t, ids[0])
	w.join(t, ids[1])
	all := []*api.NodeContainer{container("1"), container("2"), container("3")}
	a := w.connect(t, ids[0], all...)
	w.connect(t, ids[1])
	ctx, user := w.user(t)
	if _, err := user.SetNode(ctx, &api.SetNodeRequest{Node: "a", State: "draining"}); err != nil {
		t.Fatal(err)
	}
	sent := map[string]bool{a.command(t).Id: true, a.command(t).Id: true}
	var waits *api.Intent
	reply, err := user.Intents(ctx, &api.IntentsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range reply.Intents {
		if !sent[one.Id] {
			waits = one
		}
	}
	for range 2 { // the second time, it is so already
		one, err := user.CancelIntent(ctx, &api.CancelIntentRequest{Id: waits.Id})
		if err != nil || one.State != "cancelled" || one.CancelledBy != "anna" ||
			one.EndedUnixNanoseconds == 0 {
			t.Fatalf("%v, %v", one, err)
		}
	}
	w.stop()
	w = start(t, w.kept)
	defer w.stop()
	a = w.connect(t, ids[0], all...)
	w.connect(t, ids[1])
	ctx, user = w.user(t)
	for range 2 {
		again := a.command(t)
		if !sent[again.Id] {
			t.Fatalf("command %v", again)
		}
		a.says(t, again.Id, "moved", "")
	}
	eventually(t, "the reason beside the node", func() error {
		reply, err := user.ClusterNodes(ctx, &api.ClusterNodesRequest{})
		if err != nil || !strings.Contains(fmt.Sprint(reply.Nodes[0].Obstacles),
			waits.Name+": anna drains a; anna cancelled its move") {
			return fmt.Errorf("%v, %v", reply, err)
		}
		return nil
	})
	if _, err := user.CancelIntent(ctx, &api.CancelIntentRequest{Id: anyOf(sent)}); status.Code(err) !=
		codes.FailedPrecondition {
		t.Errorf("a move that has ended is cancelled: %v", err)
	}
	for _, id := range []string{"", "0", "zzzzzz"} {
		if _, err := user.CancelIntent(ctx, &api.CancelIntentRequest{Id: id}); status.Code(err) !=
			codes.NotFound {
			t.Errorf("%q: %v", id, err)
		}
	}
	if _, err := user.SetNode(ctx, &api.SetNodeRequest{Node: "a", State: "draining"}); err != nil {
		t.Fatal(err)
	}
	if again := a.command(t); again.Container != waits.Container || again.Id == waits.Id {
		t.Errorf("command %v after the node was drained again", again)
	}
}

func anyOf(all map[string]bool) string {
	for one := range all {
		return one
	}
	return ""
}

// TestCancelSent: the source is asked to cancel a move that was sent, also by the next leader, and what the
// source says counts: that it is cancelled, that it cannot be, or that it was too late.
func TestCancelSent(t *testing.T) {
	ids := nodes(t, "a", "b")
	w := start(t, store.NewMemory())
	w.join(t, ids[0])
	w.join(t, ids[1])
	a := w.connect(t, ids[0], container("1"), container("2"))
	w.connect(t, ids[1])
	ctx, user := w.user(t)
	made := map[string]string{}
	for _, name := range []string{"name-1", "name-2"} {
		reply, err := user.Move(ctx, &api.MoveRequest{Container: name, Node: "b"})
		if err != nil {
			t.Fatal(err)
		}
		made[name] = reply.Intent.Id
		if command := a.command(t); command.Id != reply.Intent.Id {
			t.Fatalf("command %v", command)
		}
		one, err := user.CancelIntent(ctx, &api.CancelIntentRequest{Id: reply.Intent.Id})
		if err != nil || one.State != "sent" || one.CancelledBy != "anna" {
			t.Fatalf("%v, %v", one, err)
		}
		if down := a.next(t); down.Command != nil || down.Cancel.Id != reply.Intent.Id {
			t.Fatalf("message %v", down)
		}
	}
	w.stop()
	w = start(t, w.kept)
	defer w.stop()
	a = w.connect(t, ids[0], container("1"), container("2"))
	for range 2 {
		if down := a.next(t); down.Command != nil || down.Cancel.Epoch != a.epoch ||
			down.Cancel.Generation != 1 {
			t.Fatalf("message %v", down)
		}
	}
	if err := a.stream.Send(&api.Up{Outcome: &api.Outcome{Command: made["name-1"], State: "begun",
		CancelError: "it is busy"}}); err != nil {
		t.Fatal(err)
	}
	ctx, user = w.user(t)
	eventually(t, "the reason", func() error {
		reply, err := user.Intents(ctx, &api.IntentsRequest{})
		if err != nil || !strings.Contains(fmt.Sprint(reply), "it is busy") {
			return fmt.Errorf("%v, %v", reply, err)
		}
		return nil
	})
	a.says(t, made["name-1"], "failed", "rolled back")
	if one := ended(t, w, made["name-1"]); one.State != "cancelled" ||
		one.Error != "anna cancelled it: rolled back" {
		t.Errorf("it ended as %v", one)
	}
	a.says(t, made["name-2"], "moved", "")
	if one := ended(t, w, made["name-2"]); one.State != "moved" {
		t.Errorf("it ended as %v", one)
	}
	w.cluster.mu.Lock()
	defer w.cluster.mu.Unlock()
	if len(w.cluster.failures) > 0 || len(w.cluster.queue.All()) > 0 ||
		w.cluster.state.Containers[container("1").Id].Held != nil {
		t.Errorf("left: %v, %v, %v", w.cluster.failures, w.cluster.queue.All(), w.cluster.state.Containers)
	}
}

// TestCancelWithoutLeader: what cannot be made durable does not happen.
func TestCancelWithoutLeader(t *testing.T) {
	ids := nodes(t, "a", "b")
	w := start(t, store.NewMemory())
	defer w.stop()
	w.join(t, ids[0])
	w.join(t, ids[1])
	a := w.connect(t, ids[0], container("1"))
	w.connect(t, ids[1])
	ctx, user := w.user(t)
	made, err := user.Move(ctx, &api.MoveRequest{Container: "name-1", Node: "b"})
	if err != nil {
		t.Fatal(err)
	}
	a.command(t)
	if err := w.cluster.records.term.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := user.CancelIntent(ctx, &api.CancelIntentRequest{Id: made.Intent.Id}); status.Code(err) !=
		codes.Unavailable {
		t.Errorf("cancelled without a leader: %v", err)
	}
	w.cluster.mu.Lock()
	defer w.cluster.mu.Unlock()
	if w.cluster.state.Intents[made.Intent.Id].CancelledBy != "" {
		t.Error("it is cancelled")
	}
}

// TestRefusedElsewhere: a node that refuses a container is not asked again before it has changed; others are.
func TestRefusedElsewhere(t *testing.T) {
	ids := nodes(t, "a", "b", "c")
	w := start(t, store.NewMemory())
	defer w.stop()
	for _, id := range ids {
		w.join(t, id)
	}
	a := w.connect(t, ids[0], container("1"))
	b := w.connect(t, ids[1])
	w.connect(t, ids[2])
	ctx, user := w.user(t)
	if _, err := user.SetNode(ctx, &api.SetNodeRequest{Node: "a", State: "draining"}); err != nil {
		t.Fatal(err)
	}
	refuse := func(command *api.Command) {
		t.Helper()
		if err := a.stream.Send(&api.Up{Outcome: &api.Outcome{Command: command.Id, State: "failed",
			Error: "not here", Refused: true}}); err != nil {
			t.Fatal(err)
		}
		ended(t, w, command.Id)
		w.ahead.Add(int64(maxRetry)) // so that nothing waits for its next try
		w.cluster.kick()
	}
	first := a.command(t)
	refuse(first)
	second := a.command(t)
	if second.Node == first.Node || second.Id == first.Id {
		t.Fatalf("command %v after %v", second, first)
	}
	refuse(second)
	eventually(t, "the reason beside the node", func() error {
		w.cluster.kick()
		reply, err := user.ClusterNodes(ctx, &api.ClusterNodesRequest{})
		if err != nil || !strings.Contains(fmt.Sprint(reply.Nodes[0].Obstacles), "2 refused it") {
			return fmt.Errorf("%v, %v", reply, err)
		}
		return nil
	})
	if err := b.stream.Send(&api.Up{Delta: &api.Delta{FreeBytes: 9 << 30}}); err != nil {
		t.Fatal(err)
	}
	if third := a.command(t); third.Node != "b" {
		t.Errorf("command %v after b has changed", third)
	}
}

// TestFailures: what is remembered of failures is bounded, and forgotten.
func TestFailures(t *testing.T) {
	now := time.Now()
	c := &cluster{now: func() time.Time { return now }, failures: failures{}}
	c.state.Nodes = map[string]store.Node{"n0": {Labels: map[string]string{"zone": "x"}}}
	c.live = map[string]*liveNode{"n0": {since: now}}
	for i := range 3 * maxTried {
		now = now.Add(time.Second)
		target := fmt.Sprint("n", i)
		c.failures.add(store.Intent{Container: "1", To: target}, i%2 == 0, c.traits(target), now)
	}
	refused, failed := c.failures.tried("1", c.traits)
	if len(refused) != maxTried/2 || len(failed) != maxTried/2 {
		t.Errorf("%v refused, %v failed", refused, failed)
	}
	for what, change := range map[string]func(){
		"labels":    func() { c.state.Nodes["n0"] = store.Node{Labels: map[string]string{"zone": "y"}} },
		"state":     func() { c.state.Nodes["n0"] = store.Node{State: store.Cordoned} },
		"version":   func() { c.live["n0"].version = "2" },
		"memory":    func() { c.live["n0"].free += moreRoom },
		"reconnect": func() { c.live["n0"].since = now },
	} {
		now = now.Add(time.Second)
		c.failures.add(store.Intent{Container: "1", To: "n0"}, true, c.traits("n0"), now)
		if refused, _ := c.failures.tried("1", c.traits); !strings.Contains(fmt.Sprint(refused), "n0") {
			t.Errorf("before %s: %v", what, refused)
		}
		if change(); names(c.failures.tried("1", c.traits))["n0"] {
			t.Errorf("n0 counts as before in spite of its %s", what)
		}
	}
	if c.failures["1"].notBefore().Sub(now) != maxRetry {
		t.Errorf("it is tried again after %v", c.failures["1"].notBefore().Sub(now))
	}
	now = now.Add(failuresGoodFor + time.Second)
	if c.failures.forget(now); len(c.failures) > 0 {
		t.Errorf("%v are remembered", c.failures)
	}
}

func names(refused, failed []string) map[string]bool {
	all := map[string]bool{}
	for _, one := range append(refused, failed...) {
		all[one] = true
	}
	return all
}
