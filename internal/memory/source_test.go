package memory

import (
	"context"
	"testing"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// TestWhatWasSentIsWhatIsThere makes rounds of programs that change their memory in all ways, freezes them,
// and compares each page. Afterwards the program continues undisturbed.
func TestWhatWasSentIsWhatIsThere(t *testing.T) {
	best, why := BestTracking()
	t.Logf("the best tracking of this kernel: %s (%v)", best, why)
	for _, c := range []struct {
		kind      string
		mebibytes int
		threads   int
		config    SourceConfig
	}{
		{kind: "write", mebibytes: 32, threads: 8},
		{kind: "write-huge", mebibytes: 32, threads: 2},
		{kind: "churn", mebibytes: 1, threads: 4},
		{kind: "fork", mebibytes: 8, threads: 1},
		{kind: "spawn", mebibytes: 8, threads: 1},
		{kind: "grow", mebibytes: 1, threads: 1},
		{kind: "exec", mebibytes: 4, threads: 2},
		{kind: "guard", mebibytes: 1, threads: 1},
		{kind: "direct", mebibytes: 1, threads: 2},
		{kind: "wait-spin-block", mebibytes: 1, threads: 2},
		{kind: "write-churn-nobody-filtered-locked", mebibytes: 4, threads: 2},
		{kind: "write-hidden-deadly-namespace", mebibytes: 4, threads: 2},
		{kind: "write-churn", mebibytes: 4, threads: 2, config: SourceConfig{Tracking: Hashing}},
		{kind: "write-churn-grow", mebibytes: 4, threads: 2, config: SourceConfig{Tracking: SoftDirty}},
		{kind: "grow-direct", mebibytes: 1, threads: 1, config: SourceConfig{Tracking: Hashing}},
	} {
		if testing.Short() {
			c.mebibytes = max(1, c.mebibytes/8)
		}
		t.Run(c.kind+" "+string(c.config.Tracking), func(t *testing.T) {
			p := start(t, c.kind, c.mebibytes, c.threads)
			moveOnce(t, p, c.config, usualOrdering())
			moveOnce(t, p, c.config, smallOrdering())
		})
	}
}

func moveOnce(t *testing.T, p *program, config SourceConfig, o ordering) {
	config.Processes = p.group.Procs
	s := NewSource(config)
	s.ordering = o
	target := newCopied(t)
	for range 3 {
		stats := target.round(s, false)
		if len(stats.Refused) > 0 && (config.Tracking != SoftDirty || kernel.ProbeSoftDirty() == nil) {
			t.Errorf("not tracked: %+v", stats.Refused)
		}
		p.progress()
	}
	compared := 0
	for range 5 {
		p.freeze()
		target.round(s, true)
		if last := target.round(s, true); last.Pages > 0 {
			t.Errorf("%d pages have changed in the freeze", last.Pages)
		}
		maps, err := s.Map()
		must(t, err)
		compared += target.verify(p, maps)
		p.thaw()
		target.round(s, false)
		p.progress()
	}
	must(t, s.Close())
	p.progress()
	leavesNoTrace(t, p.pid())
	t.Logf("%d pages compared", compared)
}

// TestComplete sends requested pages that were not sent before.
func TestComplete(t *testing.T) {
	p := start(t, "block", 4, 1)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	_, err := s.Round(context.Background(), ignoreRuns())
	must(t, err)
	p.freeze()
	_, err = s.Final(context.Background(), ignoreRuns())
	must(t, err)
	maps, err := s.Map()
	must(t, err)
	if stats, err := s.Complete(context.Background(), ignoreRuns(), Left{Listed: maps}); err != nil ||
		stats.Pages > 0 {
		t.Errorf("all was sent: %+v, %v", stats, err)
	}
	s.tasks.all[p.pid()].sent = pageset.Set{}
	if _, err := s.Map(); err == nil {
		t.Error("the map lists pages that were never sent")
	}
	target := newCopied(t)
	w, finish := target.receive()
	_, err = s.Complete(context.Background(), NewEncoder(w), Left{Listed: maps})
	must(t, err)
	finish()
	if n := target.verify(p, maps); n < 1024 {
		t.Errorf("only %d pages were compared", n)
	}
	if _, err := s.Complete(context.Background(), ignoreRuns(),
		Left{Listed: []TaskMap{{Task: 1}}}); err == nil {
		t.Error("there is no process 1")
	}
	one := []TaskMap{{Task: 1, Areas: []Area{{0, 1}}},
		{Task: maps[0].Task, Areas: []Area{maps[0].Areas[0], {0, 1}}}}
	if stats, err := s.Again(context.Background(), ignoreRuns(), one); err != nil ||
		stats.Pages != maps[0].Areas[0].Pages || stats.Gone != 1 {
		t.Errorf("once more: %+v, %v", stats, err)
	}
	p.thaw()
	must(t, s.Close())
}
