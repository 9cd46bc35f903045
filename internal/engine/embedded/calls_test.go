package embedded

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// TestPassed: a running container says which dangerous system calls its processes may make, this node
// refuses one that may make others, and what came with a container goes on with it.
func TestPassed(t *testing.T) {
	t.Parallel()
	a, b := newTestNode(t), newTestNode(t)
	d := a.start(definition(t, "sh", "-c", "while :; do sleep 0.1; done"))
	passed := func(n *testNode) []string {
		t.Helper()
		ctr, err := n.Inspect(t.Context(), d.ID)
		if err != nil {
			t.Fatal(err)
		}
		return ctr.Definition.Passed
	}
	own := passed(a)
	if !slices.Contains(own, "process_vm_writev") || slices.Contains(own, "mount") {
		t.Fatalf("passed: %v", own)
	}
	refused := func(with []string) []engine.Problem {
		t.Helper()
		d.Passed = with
		problems, err := b.Reserve(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		return problems
	}
	for _, fine := range [][]string{nil, {}, own} {
		if problems := refused(fine); len(problems) > 0 {
			t.Errorf("%v: %+v", fine, problems)
		}
	}
	problems := refused(append([]string{"keyctl", "mount"}, own...))
	if len(problems) != 1 || !strings.Contains(problems[0].Why, "forbids keyctl, mount, which") {
		t.Errorf("%+v", problems)
	}
	_, err := b.PrepareRestore(t.Context(), d, "")
	if err == nil || !strings.Contains(err.Error(), "keyctl") {
		t.Errorf("it is expected: %v", err)
	}
	move(t, a, b, d.ID)
	if came := passed(b); !slices.Equal(came, own) {
		t.Errorf("at the target: %v, was %v", came, own)
	}
	// A container that is started anew gets this node's filter.
	path := b.paths.of(d.ID).definition()
	must(t, durable.Load(path, &d))
	d.Passed = []string{"keyctl"}
	must(t, durable.Save(path, d))
	must(t, b.Stop(t.Context(), d.ID, time.Second))
	must(t, b.Start(t.Context(), d.ID))
	if now := passed(b); !slices.Equal(now, own) {
		t.Errorf("after a start: %v, want %v", now, own)
	}
}
