package embedded

import (
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

func TestRunToTheEnd(t *testing.T) {
	n := newTestNode(t)
	d := n.start(definition(t, "sh", "-c", "echo out; echo err >&2; printf part; exit 7"))
	code, err := n.Wait(t.Context(), d.ID)
	if err != nil || code != 7 {
		t.Fatalf("Wait: %d, %v", code, err)
	}
	if got := n.output(d.ID); len(got) != len("out\nerr\npart") {
		t.Errorf("output %q", got)
	}
	one, err := n.Inspect(t.Context(), d.Name)
	if err != nil || one.State != engine.Exited || one.ExitCode != 7 || one.Started.IsZero() || one.Finished.IsZero() {
		t.Errorf("Inspect: %+v, %v", one, err)
	}
	waitFor(t, "the run directory to go", func() bool { return !exists(n.paths.of(d.ID).runDir()) })
}
