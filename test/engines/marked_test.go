package engines

import (
	"context"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
)

// listed returns an engine's list of its containers, and its mark of a copy whose container has moved to b.
func listed(t *testing.T, s subject, container string) (all, mark string) {
	t.Helper()
	switch is := s.name(); is {
	case dockerEngine, podmanEngine:
		return in(t, "a", is, "ps", "--all", "--format", "{{.Names}}"), container + "-moved-to-b"
	case containerdEngine:
		return in(t, "a", "ctr", "containers", "info", container), `"io.godwit.moved-to": "b"`
	}
	return in(t, "a", "godwit", "ps"), "moved to b"
}

// TestMarkedWhilePushing: as long as there are remote pages, the engine at the source shows that its copy
// is no longer the container, and not any more when the container continues there.
func TestMarkedWhilePushing(t *testing.T) {
	for _, s := range doubted() {
		if s.name() == lxcEngine { // it cannot show it
			continue
		}
		t.Run(titleOf(s), func(t *testing.T) { markedWhilePushing(t, s) })
	}
}

func markedWhilePushing(t *testing.T, s subject) {
	const container = "marked"
	c := conformance{s: s}
	c.begins(t, container, nil, count)
	c.counted(t, "a", container, 1)
	stop := fault(t, "a", agent.Fault{Side: "source", Step: "drain", When: "before"}, agent.FaultPause)
	moved := make(chan error, 1)
	go func() {
		args := []string{"godwit", "migrate", "--wait", "--mode", "post-copy", godwitName(s, container), "b"}
		_, err := world.lab.Exec(context.Background(), "a", args...)
		moved <- err
	}()
	eventually(t, "it runs at b", func() bool {
		if len(moved) > 0 {
			t.Fatalf("the move was over before: %v", <-moved)
		}
		return stop.isReached()
	})
	up := linkDown(t)
	stop.goOn(t)
	eventually(t, "its engine shows that it has moved", func() bool {
		all, mark := listed(t, s, container)
		return strings.Contains(all, mark)
	})
	if ps := in(t, "a", "godwit", "ps"); !strings.Contains(ps, "moved to b") {
		t.Errorf("godwit ps: %s", ps)
	}
	eventually(t, "an operator can take it back", func() bool {
		return tried(t, "a", "sh", "-c", "godwit thaw --force "+godwitName(s, container)) == nil
	})
	if all, mark := listed(t, s, container); strings.Contains(all, mark) {
		t.Errorf("it is marked and runs: %s", all)
	}
	c.counted(t, "a", container, c.counted(t, "a", container, 1))
	up()
	eventually(t, "the migration is over", func() bool { return len(moved) > 0 })
	t.Logf("the move: %v", <-moved)
	c.oneCopy(t, container, false, false)
}
