package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// node is an agent whose migrations end as the test says.
type node struct {
	mu      sync.Mutex
	asked   []string      // ids of migrations
	begun   chan struct{} // unless nil, has room for one: a migration has begun
	refuse  error
	reports map[string]migration.Report
	ended   map[string]bool
	cancels []string // ids
	late    error    // why nothing can be cancelled

	containers []engine.Container
	measured   int
}

func newNode() *node {
	return &node{reports: map[string]migration.Report{}, ended: map[string]bool{}}
}

func (n *node) Containers(context.Context, bool) ([]engine.Container, error) {
	return n.containers, nil
}
func (n *node) Moving() map[string]bool { return nil }
func (n *node) Nodes() []*api.Node {
	return []*api.Node{{Self: true, Version: "1"}, {Name: "b", BandwidthBitsPerSecond: 1e9}}
}

func (n *node) Memory(context.Context, string) (int64, error) {
	n.measured++
	return 5 << 20, nil
}

func (n *node) Migrate(_ context.Context, request *api.MigrateRequest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, request.Migration)
	if _, ended := n.reports[request.Migration]; n.refuse == nil && !ended {
		n.reports[request.Migration] = migration.Report{Result: migration.ResultRuns}
	}
	if n.begun != nil {
		n.begun <- struct{}{}
	}
	return n.refuse
}

// Cancel ends a migration, unless it is too late.
func (n *node) Cancel(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cancels = append(n.cancels, id)
	if n.late == nil {
		n.reports[id], n.ended[id] = migration.Report{Result: migration.RolledBack}, true
	}
	return n.late
}

func (n *node) Report(id string) (migration.Report, bool, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	report, known := n.reports[id]
	return report, n.ended[id], known
}

func (n *node) end(id string, result migration.Result) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reports[id] = migration.Report{Result: result, DowntimeSeconds: 0.5}
	n.ended[id] = result != migration.ResultDoubt
}

// open makes an uplink of a node, whose outcomes arrive in the channel.
func open(t *testing.T, state string, n *node) (*Uplink, chan *api.Outcome) {
	t.Helper()
	u, err := New(Options{State: state, Node: n, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	outcomes := make(chan *api.Outcome, 100)
	u.set(&told{has: &api.NodeState{}, send: func(up *api.Up) error {
		if up.Outcome != nil {
			outcomes <- up.Outcome
		}
		return nil
	}})
	return u, outcomes
}

func command(number int, epoch, generation uint64) *api.Command {
	return &api.Command{Id: fmt.Sprintf("%016x", number), Epoch: epoch, Generation: generation,
		Container: strings.Repeat("c", 64), Node: "b", Mode: "auto"}
}

func want(t *testing.T, outcomes chan *api.Outcome, state, text string) {
	t.Helper()
	if got := <-outcomes; got.State != state || !strings.Contains(got.Error, text) {
		t.Fatalf("outcome %v, want %s: %s", got, state, text)
	}
}

// TestRepeated: a command that comes again moves nothing twice, also after a restart of the agent, and is
// answered with what came of it.
func TestRepeated(t *testing.T) {
	state, n := t.TempDir(), newNode()
	u, outcomes := open(t, state, n)
	one := command(1, 5, 1)
	u.execute(t.Context(), one)
	want(t, outcomes, Begun, "")
	u.execute(t.Context(), one)
	want(t, outcomes, Begun, "")
	n.end(one.Id, migration.Moved)
	want(t, outcomes, Moved, "")
	u.execute(t.Context(), one)
	want(t, outcomes, Moved, "")
	u.following.Wait()
	u, outcomes = open(t, state, n)
	u.execute(t.Context(), one)
	want(t, outcomes, Moved, "")
	if !slices.Equal(n.asked, []string{one.Id}) {
		t.Errorf("migrations %v", n.asked)
	}
}

// TestFenced: commands from the past are refused, and nothing is done.
func TestFenced(t *testing.T) {
	n := newNode()
	u, outcomes := open(t, t.TempDir(), n)
	if err := u.journal.meet("x", 7); err != nil {
		t.Fatal(err)
	}
	if err := u.journal.meet("x", 6); !errors.Is(err, errStale) {
		t.Errorf("an earlier leader: %v", err)
	}
	u.execute(t.Context(), command(1, 6, 1))
	want(t, outcomes, Failed, "it has the epoch 6, and the node has seen 7")
	n.refuse = errors.New("no room")
	u.execute(t.Context(), command(2, 7, 4))
	want(t, outcomes, Begun, "")
	want(t, outcomes, Failed, "no room")
	u.execute(t.Context(), command(3, 8, 4))
	want(t, outcomes, Failed, "it has the generation 4 of the container, and the node has had 4")
	u.following.Wait()
	if len(n.asked) != 1 {
		t.Errorf("migrations %v", n.asked)
	}
	if err := u.journal.meet("another controller", 1); err != nil {
		t.Errorf("a controller that was set up anew: %v", err)
	}
	u.execute(t.Context(), command(4, 1, 1))
	want(t, outcomes, Begun, "")
	want(t, outcomes, Failed, "no room")
	u.following.Wait()
}

// TestAgentEndsBetween: the agent ends after it has recorded a command. If the migration never began, the
// command has failed; if it did, its end is told.
func TestAgentEndsBetween(t *testing.T) {
	state, n := t.TempDir(), newNode()
	u, _ := open(t, state, n)
	for _, number := range []int{1, 2} {
		c := command(number, 1, uint64(number))
		if _, known, err := u.journal.begin(c, u.now()); known || err != nil {
			t.Fatal(known, err)
		}
	}
	n.end(command(2, 1, 2).Id, migration.RolledBack)
	u, outcomes := open(t, state, n)
	for _, one := range u.journal.open() {
		u.follow(t.Context(), one)
	}
	want(t, outcomes, Failed, "the agent ended before the migration began")
	want(t, outcomes, Failed, "rolled-back")
	if len(u.journal.open()) > 0 {
		t.Error("commands are still open")
	}
}

// TestCancelled: a migration under way is cancelled once for each time that the controller asks, and its end
// is told.
func TestCancelled(t *testing.T) {
	n := newNode()
	n.late, n.begun = errors.New("it was handed over"), make(chan struct{}, 1)
	state := t.TempDir()
	u, outcomes := open(t, state, n)
	one := command(1, 1, 1)
	u.execute(t.Context(), one)
	want(t, outcomes, Begun, "")
	<-n.begun
	u.cancel(one)
	want(t, outcomes, Begun, "")
	if got := <-outcomes; got.State != Begun || got.CancelError != "it was handed over" {
		t.Fatalf("outcome %v", got)
	}
	n.mu.Lock()
	n.late = nil
	n.mu.Unlock()
	u.cancel(one)
	want(t, outcomes, Begun, "")
	want(t, outcomes, Failed, string(migration.RolledBack))
	u.following.Wait()
	if !slices.Equal(n.cancels, []string{one.Id, one.Id}) {
		t.Errorf("cancelled %v", n.cancels)
	}
	u.cancel(one) // it has ended
	want(t, outcomes, Failed, string(migration.RolledBack))
	u, outcomes = open(t, state, n)
	u.execute(t.Context(), one)
	want(t, outcomes, Failed, string(migration.RolledBack))
	if len(n.asked) != 1 || len(n.cancels) != 2 {
		t.Errorf("migrations %v, cancelled %v", n.asked, n.cancels)
	}
}

// TestCancelledBefore: a command that is cancelled before it arrives never begins, also after a restart.
func TestCancelledBefore(t *testing.T) {
	n := newNode()
	state := t.TempDir()
	u, outcomes := open(t, state, n)
	one := command(1, 5, 1)
	u.cancel(one)
	want(t, outcomes, Failed, "it was cancelled before it began")
	u, outcomes = open(t, state, n)
	u.execute(t.Context(), one)
	want(t, outcomes, Failed, "it was cancelled before it began")
	two := command(2, 5, 2)
	if _, known, err := u.journal.begin(two, u.now()); known || err != nil {
		t.Fatal(known, err)
	}
	u.cancel(two) // before it is carried out
	want(t, outcomes, Begun, "")
	found, _ := u.journal.find(two.Id)
	if u.begin(t.Context(), two, found) {
		t.Error("a cancelled command begins")
	}
	want(t, outcomes, Failed, "it was cancelled before it began")
	u.cancel(command(3, 4, 3)) // of an earlier leader
	u.cancel(&api.Command{Id: "x"})
	if got := <-outcomes; got.Command != "x" || !strings.Contains(got.CancelError, "refused") {
		t.Errorf("outcome %v", got)
	}
	if len(n.asked)+len(n.cancels) > 0 || len(u.journal.kept.Commands) != 2 {
		t.Errorf("migrations %v, cancelled %v, commands %v", n.asked, n.cancels, u.journal.kept.Commands)
	}
}

// TestCancelledAcrossRestart: an agent that ends before it has cancelled does it afterwards.
func TestCancelledAcrossRestart(t *testing.T) {
	n := newNode()
	state := t.TempDir()
	u, outcomes := open(t, state, n)
	one := command(1, 1, 1)
	if _, _, err := u.journal.begin(one, u.now()); err != nil {
		t.Fatal(err)
	}
	if err := n.Migrate(t.Context(), &api.MigrateRequest{Migration: one.Id}); err != nil {
		t.Fatal(err)
	}
	u.cancel(one)
	want(t, outcomes, Begun, "")
	u, outcomes = open(t, state, n)
	for _, entry := range u.journal.open() {
		u.follow(t.Context(), entry)
	}
	want(t, outcomes, Failed, string(migration.RolledBack))
	if len(n.cancels) != 1 {
		t.Errorf("cancelled %v", n.cancels)
	}
}

// TestRefused: the controller hears that a container was refused, whether at once or by the target. A
// migration that could not begin for another reason, such as a full disk, counts as failed.
func TestRefused(t *testing.T) {
	n := newNode()
	u, outcomes := open(t, t.TempDir(), n)
	for number, err := range []error{fmt.Errorf("%w: no room", api.ErrRefused),
		errors.New("the disk is full")} {
		n.refuse = err
		u.execute(t.Context(), command(number+1, 1, uint64(number+1)))
		want(t, outcomes, Begun, "")
		if got := <-outcomes; got.State != Failed || got.Refused != errors.Is(err, api.ErrRefused) {
			t.Errorf("%v: outcome %v", err, got)
		}
		u.following.Wait()
	}
	n.refuse = nil
	for number, result := range []migration.Result{migration.Refused, migration.RolledBack} {
		one := command(number+3, 1, uint64(number+3))
		u.execute(t.Context(), one)
		want(t, outcomes, Begun, "")
		n.end(one.Id, result)
		if got := <-outcomes; got.State != Failed || got.Refused != (result == migration.Refused) {
			t.Errorf("%s: outcome %v", result, got)
		}
		u.following.Wait()
	}
}

// TestDoubt: a migration in doubt is told once, and its end later.
func TestDoubt(t *testing.T) {
	n := newNode()
	u, outcomes := open(t, t.TempDir(), n)
	one := command(1, 1, 1)
	u.execute(t.Context(), one)
	want(t, outcomes, Begun, "")
	n.end(one.Id, migration.ResultDoubt)
	want(t, outcomes, InDoubt, "")
	n.end(one.Id, migration.Moved)
	want(t, outcomes, Moved, "")
	u.following.Wait()
}

// TestJoinsAgain: a node that joins a controller again obeys it, although its state is from a backup.
func TestJoinsAgain(t *testing.T) {
	j, err := openJournal(filepath.Join(t.TempDir(), "commands.json"))
	if err != nil {
		t.Fatal(err)
	}
	before := Config{Fingerprint: "x", Joined: time.Unix(1, 0)}
	again := Config{Fingerprint: "x", Joined: time.Unix(2, 0)}
	command := &api.Command{Id: "1", Container: "c", Epoch: 7, Generation: 5}
	if err := j.meet(before.controller(), 7); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.begin(command, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := j.meet(before.controller(), 6); !errors.Is(err, errStale) {
		t.Errorf("an earlier leader: %v", err)
	}
	if err := j.meet(again.controller(), 6); err != nil {
		t.Error(err)
	}
	command = &api.Command{Id: "2", Container: "c", Epoch: 6, Generation: 4}
	if _, known, err := j.begin(command, time.Now()); err != nil || known {
		t.Errorf("a command of the restored controller: %t, %v", known, err)
	}
}

// TestJournalIsBounded: the oldest ended commands are forgotten, and none that is open.
func TestJournalIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "commands.json")
	j, err := openJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range keepCommands {
		j.kept.Commands = append(j.kept.Commands, entry{ID: fmt.Sprintf("%016x", i), State: Moved})
	}
	j.kept.Commands[0].State = Begun
	if _, _, err := j.begin(command(keepCommands, 1, 1), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	again, err := openJournal(path)
	if err != nil || len(again.kept.Commands) != keepCommands || again.kept.Commands[0].State != Begun ||
		again.kept.Commands[1].ID != fmt.Sprintf("%016x", 2) || len(again.open()) != 2 {
		t.Errorf("%d commands, %v", len(again.kept.Commands), err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openJournal(path); err == nil {
		t.Error("a damaged journal is taken for an empty one")
	}
}

func TestDifference(t *testing.T) {
	one := &api.NodeContainer{Id: "1", Name: "web", State: "running", MemoryBytes: 1 << 20}
	before := &api.NodeState{FreeBytes: 1 << 30, Containers: []*api.NodeContainer{one}}
	after := proto.Clone(before).(*api.NodeState)
	after.Containers[0].MemoryBytes, after.FreeBytes = 2<<20, 1<<30+4096
	if d := difference(before, after); d != nil {
		t.Errorf("small changes are told: %v", d)
	}
	after.Containers[0].State = "frozen"
	after.Containers = append(after.Containers, &api.NodeContainer{Id: "2"})
	if d := difference(before, after); d == nil || len(d.Containers) != 2 || len(d.Gone) != 0 {
		t.Errorf("change %v", d)
	}
	link := func(rate float64) *api.NodeState {
		return &api.NodeState{FreeBytes: 1 << 30, Links: []*api.NodeLink{{Node: "b", BitsPerSecond: rate}}}
	}
	if d := difference(link(1e9), link(1.1e9)); d != nil {
		t.Errorf("a small change of a link is told: %v", d)
	}
	for _, before := range []*api.NodeState{link(5e8), link(3e9), {FreeBytes: 1 << 30}} {
		if d := difference(before, link(1e9)); d == nil || len(d.Links) != 1 {
			t.Errorf("change %v", d)
		}
	}
	if d := difference(after, &api.NodeState{FreeBytes: 1 << 20}); len(d.Gone) != 2 || d.FreeBytes != 1<<20 {
		t.Errorf("change %v", d)
	}
}

// TestParts: a state of any size is told in messages that the controller takes, and nothing of it is lost.
func TestParts(t *testing.T) {
	for _, count := range []int{0, 1, 3000} {
		whole := &api.NodeState{Version: "1", Address: "x", FreeBytes: 7}
		for i := range count {
			whole.Containers = append(whole.Containers, &api.NodeContainer{Id: fmt.Sprint(i),
				Labels: map[string]string{"godwit.nodes": strings.Repeat("x", i%900)}})
			whole.Links = append(whole.Links, &api.NodeLink{Node: fmt.Sprint(i), BitsPerSecond: float64(i)})
		}
		got := &api.NodeState{}
		parts := stateParts(whole)
		for i, one := range parts {
			more := i+1 < len(parts)
			if size := proto.Size(one); size > partBytes+1024 {
				t.Errorf("part %d has %d bytes", i, size)
			}
			if i == 0 {
				if got = one.State; got.More != more {
					t.Errorf("the first of %d parts: %t", len(parts), got.More)
				}
				continue
			}
			if one.Delta.More != more || len(one.Delta.Containers)+len(one.Delta.Links) == 0 {
				t.Errorf("part %d of %d: %t", i, len(parts), one.Delta.More)
			}
			got.Containers = append(got.Containers, one.Delta.Containers...)
			got.Links = append(got.Links, one.Delta.Links...)
		}
		if got.More = false; !proto.Equal(got, whole) {
			t.Errorf("%d containers in %d parts are told as %d", count, len(parts), len(got.Containers))
		}
	}
	gone := &api.Delta{FreeBytes: 9}
	for i := range 5000 {
		gone.Gone = append(gone.Gone, fmt.Sprintf("%064d", i))
	}
	got := 0
	for _, one := range deltaParts(gone) {
		if got += len(one.Gone); one.FreeBytes != 9 || proto.Size(one) > partBytes+1024 {
			t.Errorf("a part with %d bytes", proto.Size(one))
		}
	}
	if got != len(gone.Gone) {
		t.Errorf("%d of %d are told", got, len(gone.Gone))
	}
}

// TestState: only running containers are measured, and not again soon; labels of others stay here.
func TestState(t *testing.T) {
	n := newNode()
	n.containers = []engine.Container{
		{State: engine.Running, Definition: engine.Definition{ID: "1",
			Labels: map[string]string{"godwit.nodes": "zone=x", "secret": "y"}}},
		{State: engine.Exited, Definition: engine.Definition{ID: "2"}},
	}
	d := &described{agent: n}
	for range 2 {
		state, err := d.state(t.Context(), true, time.Unix(1, 0))
		if err != nil || len(state.Containers) != 2 || len(state.Links) != 1 || state.Version != "1" {
			t.Fatal(state, err)
		}
		if one := state.Containers[0]; one.MemoryBytes != 5<<20 || len(one.Labels) != 1 {
			t.Errorf("container %v", one)
		}
	}
	if n.measured != 1 {
		t.Errorf("measured %d times", n.measured)
	}
}

func TestConfig(t *testing.T) {
	state := t.TempDir()
	if _, _, found, err := load(state); found || err != nil {
		t.Fatal("a configuration without a file")
	}
	addresses, err := ParseAddresses("192.0.2.1, c.example.net:99,2001:db8::1")
	if err != nil || !slices.Equal(addresses, []string{"192.0.2.1:7445", "c.example.net:99",
		"[2001:db8::1]:7445"}) {
		t.Fatal(addresses, err)
	}
	for _, bad := range []string{"", "a b", "0.0.0.0", "a:0", strings.Repeat("a,", 16) + "a"} {
		if _, err := ParseAddresses(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	fingerprint := strings.Repeat("ab", 32)
	if err := (Config{Addresses: addresses, Fingerprint: fingerprint}).Save(state); err != nil {
		t.Fatal(err)
	}
	if c, server, found, err := load(state); !found || err != nil || server.String() != fingerprint ||
		len(c.Addresses) != 3 {
		t.Errorf("%v %v %v", c, found, err)
	}
	if err := Forget(state); err != nil {
		t.Error(err)
	}
}

func FuzzCheck(f *testing.F) {
	good, err := proto.Marshal(command(1, 1, 1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		var c api.Command
		if proto.Unmarshal(data, &c) != nil || check(&c) != nil {
			return
		}
		if strings.ContainsAny(c.Id+c.Container+c.Node, "/\x00") || len(c.Id) != 16 {
			t.Errorf("%v is accepted", &c)
		}
	})
}
