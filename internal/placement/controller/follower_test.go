package controller

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
	"github.com/godwit/godwit/internal/staging"
)

const testMigration = "0123456789abcdef"

var testContainer = strings.Repeat("ab", 32)

// fakeWorld is what a policy looks at in a test.
type fakeWorld struct {
	placement.Situation
	where    whereabouts
	stages   []*fakeStage
	refuse   error            // of a stage
	idle     map[string]int64 // what nodes keep
	full     map[string]int64 // how much they keep at most
	away     bool             // nobody answers
	gone     []string         // copies that were given up
	followed func(to gone, p placement.Policy) error
	forgot   int
}

func (w *fakeWorld) situation(_ context.Context, _ placement.Policy, live Live) (placement.Situation,
	whereabouts, error) {
	s := w.Situation
	if live != nil {
		s.Live = live.Target()
	}
	return s, w.where, nil
}

func (w *fakeWorld) stage(_ context.Context, _, node string, rate float64, _ time.Time) (Live, error) {
	if w.refuse != nil {
		return nil, w.refuse
	}
	g := &fakeStage{node: node, rate: rate, world: w}
	w.stages = append(w.stages, g)
	return g, nil
}

func (w *fakeWorld) keep(_ context.Context, _, node string, d time.Duration) (idleCopy, error) {
	if w.away {
		return idleCopy{}, errAway
	}
	if d == 0 {
		w.gone = append(w.gone, node)
		delete(w.idle, node)
	}
	kept := w.idle[node]
	if most, is := w.full[node]; is && kept > most {
		return idleCopy{bytes: most}, nil
	}
	return idleCopy{kept, kept > 0}, nil
}

func (w *fakeWorld) follow(_ context.Context, to gone, p placement.Policy) error {
	return w.followed(to, p)
}

func (w *fakeWorld) forget(string) { w.forgot++ }

// fakeStage is a copy that is live.
type fakeStage struct {
	world     *fakeWorld
	node      string
	rate      float64
	told      migration.Stage
	refreshed int
}

func (g *fakeStage) Describe() migration.Stage { return g.told }
func (g *fakeStage) Refresh()                  { g.refreshed++ }
func (g *fakeStage) LimitTo(rate float64)      { g.rate = rate }
func (g *fakeStage) Target() string            { return g.node }
func (g *fakeStage) End(_ context.Context, why error) error {
	if errors.Is(why, staging.ErrIdle) {
		g.world.idle[g.node] = g.told.MemoryBytes
	}
	g.told.State, g.told.Error = migration.StageEnded, why.Error()
	return nil
}

// round is a round that has ended.
func (g *fakeStage) round(fresh time.Time) {
	g.told.Rounds++
	g.told.State, g.told.Fresh, g.told.MemoryBytes, g.told.RoundSeconds = migration.StageReady, fresh, 1000,
		0.1
	g.told.SentBytes += 100
}

// newTestController has no policies.
func newTestController(t *testing.T, dir string, w world) *Controller {
	t.Helper()
	return &Controller{dir: dir, world: w, ctx: t.Context(), log: slog.New(slog.DiscardHandler),
		all: map[string]*follower{}}
}

// newTestPlacements is a container on node a with a policy, and its world of other nodes b, c and d.
func newTestPlacements(t *testing.T, p placement.Policy) (*fakeWorld, *follower) {
	t.Helper()
	now := time.Now()
	w := &fakeWorld{Situation: placement.Situation{Now: now, Node: "a", MemoryBytes: 1000},
		idle: map[string]int64{}}
	for i, name := range []string{"b", "c", "d"} {
		w.Nodes = append(w.Nodes, placement.Node{
			Name: name, Reachable: true, RTT: time.Duration(i+1) * time.Millisecond,
			Need: placement.Cost{Seconds: 1, High: 1, Bytes: 100},
		})
	}
	p.Container, p.Until = testContainer, now.Add(time.Hour)
	s := newTestController(t, t.TempDir(), w)
	f := newFollower(s, p)
	s.all[testContainer] = f
	if err := f.save(now, true); err != nil {
		t.Fatal(err)
	}
	return w, f
}

// at is a step so many seconds later.
func (w *fakeWorld) at(f *follower, seconds float64) string {
	w.Now = time.Now().Add(time.Duration(seconds * float64(time.Second)))
	return f.step(context.Background(), w.Now)
}

func onPath(stops ...any) (p placement.Policy) {
	for i := 0; i < len(stops); i += 2 {
		p.Path = append(p.Path, placement.Stop{Node: stops[i].(string),
			Deadline: time.Now().Add(time.Duration(stops[i+1].(float64) * float64(time.Second)))})
	}
	return p
}

// TestPlacementInTime: the copy is made in time, and brought up to date once before its deadline.
func TestPlacementInTime(t *testing.T) {
	w, f := newTestPlacements(t, onPath("b", 100.0, "c", 200.0))
	if w.at(f, 0); len(w.stages) > 0 {
		t.Fatal("it was begun long before its deadline")
	}
	w.at(f, 97)
	if len(w.stages) != 1 || w.stages[0].node != "b" {
		t.Fatalf("begun: %+v", w.stages)
	}
	g := w.stages[0]
	w.at(f, 97.1)
	g.round(w.Now)
	if w.at(f, 97.5); g.refreshed > 0 {
		t.Error("it was brought up to date too early")
	}
	w.at(f, 98.6)
	w.at(f, 98.7) // it is still being brought up to date
	if g.refreshed != 1 {
		t.Errorf("it was brought up to date %d times", g.refreshed)
	}
	if c := f.snapshot(); c.At("b").SentBytes != 100 || c.At("b").Bytes != 1000 || c.At("b").Fresh.IsZero() {
		t.Errorf("%+v", c)
	}
}

// TestPlacementNodeAway: what cannot be made is tried again, and made when the node is back; one that
// is lost is noticed.
func TestPlacementNodeAway(t *testing.T) {
	w, f := newTestPlacements(t, onPath("b", 10.0))
	w.refuse = errors.New("no route")
	w.at(f, 8)
	w.at(f, 8.5)
	if c := f.snapshot(); c.At("b").Failures != 1 || c.At("b").Error != "no route" {
		t.Errorf("%+v", c)
	}
	w.at(f, 9.1)
	w.refuse = nil
	w.at(f, 11.5) // after its deadline it is of use, too
	if len(w.stages) != 1 {
		t.Fatal("it was not tried again")
	}
	w.stages[0].round(w.Now)
	w.at(f, 12)
	if c := f.snapshot(); c.At("b").Failures != 0 || c.At("b").Error != "" {
		t.Errorf("after it went well: %+v", c)
	}
	w.stages[0].told.State, w.stages[0].told.Error = migration.StageEnded, "connection to b lost"
	w.at(f, 12.5)
	if c := f.snapshot(); c.At("b").Failures != 1 || !c.At("b").Fresh.IsZero() {
		t.Errorf("after it was lost: %+v", c)
	}
	if w.at(f, 14); len(w.stages) != 2 {
		t.Error("it was not made again")
	}
}

// TestPlacementTurns: copies at neighbours are idle when it is another one's turn, and kept; those
// given up are made again.
func TestPlacementTurns(t *testing.T) {
	w, f := newTestPlacements(t, placement.Policy{Nearest: 2, BudgetBytes: 2500})
	w.at(f, 0)
	w.stages[0].round(w.Now)
	w.at(f, 1)
	if len(w.stages) != 2 || w.stages[1].node != "c" || w.idle["b"] != 1000 {
		t.Fatalf("%+v, idle %v", w.stages[len(w.stages)-1], w.idle)
	}
	w.stages[1].round(w.Now)
	w.at(f, 2)
	w.at(f, 13)
	if len(w.stages) != 3 || w.stages[2].node != "b" || w.idle["c"] != 1000 {
		t.Fatalf("not in turn: %+v", w.stages[len(w.stages)-1])
	}
	w.stages[2].round(w.Now)
	w.at(f, 14)
	delete(w.idle, "c") // that node was short of memory
	w.at(f, 14+idleFor.Seconds()/2)
	if last := w.stages[len(w.stages)-1]; last.node != "c" {
		t.Errorf("what was given up is not made again: %+v", last)
	}
	w.stages[len(w.stages)-1].round(w.Now)
	w.MemoryBytes = 2000 // it has grown: there is room for one
	w.at(f, 15+idleFor.Seconds()/2)
	if strings.Join(w.gone, " ") != "c" || f.snapshot().At("c") != nil {
		t.Errorf("beyond the budget: given up %v", w.gone)
	}
}

// TestPlacementEnds: when the container has ended, or a user wants no more of it, all copies go.
func TestPlacementEnds(t *testing.T) {
	for name, end := range map[string]func(w *fakeWorld, f *follower){
		"ended": func(w *fakeWorld, f *follower) { w.where = isMissing; f.stepped() },
		"off":   func(_ *fakeWorld, f *follower) { f.off(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			w, f := newTestPlacements(t, placement.Policy{Nearest: 2})
			w.at(f, 0)
			w.stages[0].round(w.Now)
			w.at(f, 1)
			end(w, f)
			if !f.ended || len(w.gone) != 2 || w.forgot != 1 || f.owner.of(testContainer) != nil {
				t.Errorf("ended %v, given up %v", f.ended, w.gone)
			}
			if _, err := os.Stat(f.owner.path(testContainer)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its file: %v", err)
			}
			if w.stages[1].told.State != migration.StageEnded {
				t.Error("a copy is still live")
			}
		})
	}
}

// TestPlacementGoesAlong: the policy goes to where the container has gone, as soon as that node answers.
func TestPlacementGoesAlong(t *testing.T) {
	w, f := newTestPlacements(t, onPath("b", 1.0, "c", 60.0, "a", 90.0, "d", 120.0))
	w.at(f, 0)
	w.where = isMoving
	w.stages[0].told.State, w.stages[0].told.Error = migration.StageEnded, staging.ErrTaken.Error()
	w.at(f, 1)
	if f.snapshot().At("b").Failures > 0 {
		t.Error("that a migration took it counts as a failure")
	}
	kept := placement.Copy{Node: "a", Bytes: 1000, Fresh: time.Now()}
	f.owner.Left(testContainer, "b", testMigration, kept)
	again := newTestController(t, f.owner.dir, w)
	if err := again.read(testContainer); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*follower{"at once": f, "after a restart": again.all[testContainer]} {
		w.where = isMissing
		w.followed = func(gone, placement.Policy) error { return errAway }
		if why := w.at(f, 2); why != "" {
			t.Fatalf("%s: it ended although nobody has it: %s", name, why)
		}
		var got placement.Policy
		var by gone
		w.followed = func(to gone, p placement.Policy) error { got, by = p, to; return nil }
		if why := w.at(f, 3); !strings.Contains(why, "gone to b") {
			t.Errorf("%s: %q", name, why)
		}
		if len(got.Path) != 3 || got.Path[0].Node != "c" || got.At("b") != nil || got.At("a") == nil ||
			got.At("a").Bytes != 1000 || by != (gone{"b", testMigration}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	w.followed = func(gone, placement.Policy) error { return status.Error(codes.PermissionDenied, "no") }
	if why := w.at(f, 4); !strings.Contains(why, "refused by b") {
		t.Errorf("refused: %q", why)
	}
	w.where = isHere
	if why := w.at(f, 5); why != "" || f.goneTo() != (gone{}) {
		t.Errorf("it came back: %q, %v", why, f.goneTo())
	}
}

// TestPlacementAtItsEnd: at the last node nobody has to be told, and what was staged elsewhere goes.
func TestPlacementAtItsEnd(t *testing.T) {
	w, f := newTestPlacements(t, onPath("b", 1.0))
	f.policy.Make("c").Fresh = time.Now()
	f.owner.Left(testContainer, "b", testMigration, placement.Copy{})
	w.where = isMissing
	if why := w.at(f, 2); !strings.Contains(why, "where its path ends") || strings.Join(w.gone, " ") != "c" {
		t.Errorf("%q, given up %v", why, w.gone)
	}
}

// TestPlacementAfterRestart: an agent goes on with what an earlier one was told, and with what nodes
// have kept meanwhile.
func TestPlacementAfterRestart(t *testing.T) {
	w, f := newTestPlacements(t, placement.Policy{Nearest: 2})
	w.at(f, 0)
	w.stages[0].round(w.Now)
	w.at(f, 1)
	w.stages[1].round(w.Now)
	w.at(f, 1+saveEvery.Seconds())
	w.idle = map[string]int64{"b": 1000} // c ended with its agent
	again := newTestController(t, f.owner.dir, w)
	if err := again.read(testContainer); err != nil {
		t.Fatal(err)
	}
	w.at(again.all[testContainer], 2+saveEvery.Seconds())
	if last := w.stages[len(w.stages)-1]; last.node != "c" || len(w.stages) != 3 {
		t.Errorf("%d stages, the last at %s", len(w.stages), last.node)
	}
	if err := os.WriteFile(again.path(testContainer), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := again.read(testContainer); err == nil {
		t.Error("a file that cannot be read is read")
	}
}

// TestDecodePolicy: what another node sends is bounded, and its times are by its own clock.
func TestDecodePolicy(t *testing.T) {
	now, theirs := time.Now(), time.Now().Add(-time.Hour)
	p := placement.Policy{Container: testContainer, Nearest: 1, Until: theirs.Add(time.Minute)}
	encode := func(p placement.Policy) *api.FollowRequest {
		document, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return &api.FollowRequest{PolicyJson: document, NowUnixNanoseconds: theirs.UnixNano()}
	}
	got, err := decodePolicy(encode(p), now)
	if left := got.Until.Sub(now); err != nil || left < 59*time.Second || left > 61*time.Second {
		t.Errorf("%s left, %v", left, err)
	}
	for name, bad := range map[string]*api.FollowRequest{
		"container": encode(placement.Policy{Container: "../x", Nearest: 1, Until: p.Until}),
		"nothing":   {PolicyJson: []byte("{}")}, "no document": {PolicyJson: []byte("{")},
		"large": {PolicyJson: make([]byte, maxPolicyBytes+1)},
		"over":  encode(placement.Policy{Container: testContainer, Nearest: 1, Until: theirs}),
		"clock": {PolicyJson: encode(p).PolicyJson, NowUnixNanoseconds: now.Add(-25 * time.Hour).UnixNano()},
	} {
		if p, err := decodePolicy(bad, now); err == nil {
			t.Errorf("%s: accepted as %+v", name, p)
		}
	}
}
