package embedded

import (
	"os"
	"testing"

	"github.com/godwit/godwit/internal/durable"
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
	ctr, err := n.Inspect(t.Context(), d.Name)
	if err != nil || ctr.State != engine.Exited || ctr.ExitCode != 7 || ctr.Started.IsZero() ||
		ctr.Finished.IsZero() {
		t.Errorf("Inspect: %+v, %v", ctr, err)
	}
	waitFor(t, "the run directory to go", func() bool { return !durable.Exists(n.paths.of(d.ID).runDir()) })
}

// TestDamagedRecord checks that a container whose record is lost does not affect the others.
func TestDamagedRecord(t *testing.T) {
	n := newTestNode(t)
	whole := n.start(definition(t, "sh", "-c", "sleep 1000"))
	bad := n.start(definition(t, "true"))
	if _, err := n.Wait(t.Context(), bad.ID); err != nil {
		t.Fatal(err)
	}
	path := n.paths.of(bad.ID).definition()
	intact, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(path, intact, 0o600) })
	all, err := n.List(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("List: %+v, %v", all, err)
	}
	for _, ctr := range all {
		if damaged := ctr.Definition.ID == bad.ID; damaged != (ctr.State == engine.Damaged) {
			t.Errorf("container %s is %s", ctr.Definition.Name, ctr.State)
		}
	}
	if ctr, err := n.Inspect(t.Context(), whole.Name); err != nil || ctr.State != engine.Running {
		t.Errorf("Inspect: %+v, %v", ctr, err)
	}
	if _, err := n.Inspect(t.Context(), bad.ID[:12]); err == nil {
		t.Error("Inspect of the damaged one says nothing of the damage")
	}
}
