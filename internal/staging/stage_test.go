package staging

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestStageAndTake: a copy is made, brought up to date, and taken over by a migration at both ends.
func TestStageAndTake(t *testing.T) {
	n := newNodes(t)
	n.missing.MissingImage = true
	g := n.begin(t, 0)
	until(t, "the first round is there", func() bool { return g.Describe().Rounds == 1 })
	copies := n.copies.List()
	if len(copies) != 1 {
		t.Fatalf("%d copies", len(copies))
	}
	told := copies[0].Describe()
	if told.State != migration.StageReady || told.Rounds != 1 || told.MemoryBytes == 0 ||
		told.Source != "a" || told.Target != "b" || told.Fresh.IsZero() ||
		n.brought != 1 || n.measured != web.ID {
		t.Errorf("%+v; the image was brought %d times; measuring of %.12q was stopped", told, n.brought,
			n.measured)
	}
	if bytes, reserved := n.copies.Of(web.ID); bytes != told.MemoryBytes || len(reserved) != 1 ||
		reserved[0] != testStage {
		t.Errorf("%d bytes, reserved by %q", bytes, reserved)
	}
	n.set(func() { n.written = 7 })
	if again := n.begin(t, 0); again != g {
		t.Error("another stage of the same container at the same node was begun")
	}
	until(t, "the second round is there", func() bool { return g.Describe().Rounds == 2 })
	taken, err := g.Take(t.Context(), testMigration, 0, func(int64) {})
	if err != nil || taken == nil || taken.Stage.Rounds != 2 || taken.Sender == nil {
		t.Fatalf("%+v, %v", taken, err)
	}
	n.end(t, g, ErrTaken.Error())
	page := make([]byte, memory.PageSize())
	if there, err := n.given.ReadPage(1, 1<<20, page); err != nil || !there || page[0] != 7 {
		t.Errorf("the migration got a page that begins with %d, there: %v, %v", page[0], there, err)
	}
	if n.closed != 0 {
		t.Error("the tracker was closed, which the migration has")
	}
	if list := n.stages.List(); len(list) != 1 || n.stages.Of(web.ID) != nil {
		t.Errorf("after the end: %+v", list)
	}
}

// TestStageBecomesIdle: a copy stays when its stage ends, if that was asked for, and serves the next stage.
func TestStageBecomesIdle(t *testing.T) {
	n := newNodes(t)
	g := n.begin(t, time.Minute)
	until(t, "the first round is there", func() bool { return g.Describe().Rounds == 1 })
	if err := g.End(t.Context(), ErrIdle); err != nil {
		t.Fatal(err)
	}
	if err := n.copies.AwaitIdle(t.Context(), web.ID, "a"); err != nil {
		t.Fatal(err)
	}
	n.end(t, g, ErrIdle.Error())
	if bytes, fresh, _ := n.copies.residuals.Holds(web.ID); bytes == 0 || fresh.IsZero() {
		t.Errorf("%d bytes are idle, as of %s", bytes, fresh)
	}
	if n.closed != 1 || len(n.stages.List()) != 0 {
		t.Errorf("%d trackers were closed; the list has %+v", n.closed, n.stages.List())
	}
	again := n.begin(t, 0)
	until(t, "the copy is there again", func() bool { return again.Describe().Rounds == 1 })
	if known := again.sender.Stats().BasePages; known != 1 {
		t.Errorf("%d pages were referred to, which the idle copy has", known)
	}
}

// TestStageOfWhatEnds: a container that ends, a time that is over, and a link that breaks end a stage, and
// close its tracker.
func TestStageOfWhatEnds(t *testing.T) {
	for why, change := range map[string]func(n *nodes, g *Stage){
		ErrGone.Error(): func(n *nodes, _ *Stage) { n.set(func() { n.ended = true }) },
		errOver.Error(): func(_ *nodes, g *Stage) {
			g.tell(func(told *migration.Stage) { told.Until = time.Now().Add(-time.Second) })
		},
		"connection to b":      func(n *nodes, _ *Stage) { _ = n.conn.Close() },
		ErrRemoved.Error():     func(_ *nodes, g *Stage) { g.cancel(ErrRemoved) },
		errCopyRemoved.Error(): func(n *nodes, _ *Stage) { n.copies.Remove("web", "a") },
	} {
		n := newNodes(t)
		g := n.begin(t, 0)
		until(t, "the first round is there", func() bool { return g.Describe().Rounds == 1 })
		change(n, g)
		n.end(t, g, why)
		if _, _, there := n.copies.residuals.Holds(web.ID); there || n.closed != 1 {
			t.Errorf("%s: an idle copy: %v; %d trackers were closed", why, there, n.closed)
		}
		if taken, err := g.Take(t.Context(), testMigration, 0, nil); taken != nil || err != nil {
			t.Errorf("%s: what has ended was taken: %+v, %v", why, taken, err)
		}
	}
}

// TestStageRefused: what stands against a copy ends its stage before anything is tracked.
func TestStageRefused(t *testing.T) {
	for why, change := range map[string]func(n *nodes){
		"too little": func(n *nodes) { // not that the target then ends the connection
			n.problems = []migration.Problem{{What: "memory", Why: "too little"}}
		},
		"bring the image: no registry": func(n *nodes) {
			n.missing.MissingImage, n.failed = true, errors.New("no registry")
		},
	} {
		n := newNodes(t)
		change(n)
		n.end(t, n.begin(t, time.Minute), why)
		if _, _, there := n.copies.residuals.Holds(web.ID); there || n.closed != 0 {
			t.Errorf("%s: an idle copy: %v; %d trackers were closed", why, there, n.closed)
		}
	}
}

// TestTakenByNobody: a migration that the target does not know does not get the copy.
func TestTakenByNobody(t *testing.T) {
	n := newNodes(t)
	g := n.begin(t, 0)
	until(t, "the first round is there", func() bool { return g.Describe().Rounds == 1 })
	if taken, err := g.Take(t.Context(), testStage, 0, func(int64) {}); taken != nil || err != nil {
		t.Errorf("%+v, %v", taken, err)
	}
	n.end(t, g, "no such migration")
}

// TestDropWaits: nothing of a stage is left in the container's processes when it was dropped.
func TestDropWaits(t *testing.T) {
	n := newNodes(t)
	if err := n.stages.Drop(t.Context(), web.ID, ErrGone); err != nil {
		t.Fatal(err)
	}
	g := n.begin(t, 0)
	until(t, "the first round is there", func() bool { return g.Describe().Rounds == 1 })
	if err := n.stages.Drop(t.Context(), web.ID, ErrGone); err != nil || n.closed != 1 {
		t.Errorf("%v, %d trackers were closed", err, n.closed)
	}
}

// TestNoneBegins: there is no stage beside a migration, and none after the end of the agent.
func TestNoneBegins(t *testing.T) {
	n := newNodes(t)
	n.refused = engine.ErrBusy
	begin := func() error {
		_, err := n.stages.Begin(migration.Spec{}, web, identity.Node{Name: "b"},
			migration.StageSettings{}, 0)
		return err
	}
	if err := begin(); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("beside a migration: %v", err)
	}
	n.stages.Close()
	if err := begin(); err == nil || !strings.Contains(err.Error(), "agent of a ends") {
		t.Errorf("after the end: %v", err)
	}
	if _, err := n.stages.BeginLayers(web, identity.Node{Name: "b"}, 0); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("layers after the end: %v", err)
	}
}

// TestLayers: layers are brought, and the stage is listed as ready, or with what has failed.
func TestLayers(t *testing.T) {
	n := newNodes(t)
	n.failed = errors.New("no registry")
	for state, why := range map[migration.StageState]string{migration.StageEnded: "no registry",
		migration.StageReady: ""} {
		n.set(func() {
			if n.failed = nil; why != "" {
				n.failed = errors.New(why)
			}
		})
		l, err := n.stages.BeginLayers(web, identity.Node{Name: "b"}, 1e6)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.Done():
		case <-time.After(20 * time.Second):
			t.Fatal("it does not end")
		}
		told := l.Describe()
		if told.State != state || told.Error != why || told.SentBytes != 100 ||
			told.Kind != migration.LayersCopy {
			t.Errorf("%+v", told)
		}
	}
	if list := n.stages.List(); len(list) != 2 {
		t.Errorf("%+v", list)
	}
	if dropped, err := n.stages.DropLayers(t.Context(), "web", "b", ErrRemoved); dropped || err != nil {
		t.Errorf("what has ended was dropped: %v, %v", dropped, err)
	}
}

// TestLimitTo: small changes of the rate are not worth a change.
func TestLimitTo(t *testing.T) {
	g := newStage(newNodes(t).stages, migration.Spec{}, web, identity.Node{Name: "b"})
	for _, step := range []struct{ rate, want float64 }{{1e6, 1e6}, {1.1e6, 1e6}, {2e6, 2e6}, {0, 0},
		{1e6, 1e6}} {
		g.LimitTo(step.rate)
		if got := g.settings.BandwidthLimit; got != step.want {
			t.Errorf("limited to %g, it has %g, not %g", step.rate, got, step.want)
		}
	}
	if g.bandwidth() != 1e6 {
		t.Errorf("it may use %g", g.bandwidth())
	}
}
