package engines

import (
	"os"
	"testing"

	"github.com/godwit/godwit/internal/agent"
)

// nodeRunDir is the agents' run directory in a node.
const nodeRunDir = "/run/godwit"

// point is where a fault happens in a node.
type point struct {
	directory string
	fault     agent.Fault
}

// fault sets a fault, which happens once, and before the test ends.
func fault(t *testing.T, node string, f agent.Fault, kind agent.FaultKind) point {
	t.Helper()
	root, err := world.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	p := point{root + nodeRunDir, f}
	if err := f.Set(p.directory, kind); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Clear(p.directory); err != nil {
			t.Error(err)
		}
	})
	return p
}

// reached waits until the fault has happened.
func (p point) reached(t *testing.T) {
	t.Helper()
	eventually(t, "fault "+p.fault.Step, p.isReached)
}

func (p point) isReached() bool {
	_, err := os.Lstat(p.fault.Reached(p.directory))
	return err == nil
}

// goOn ends a pause.
func (p point) goOn(t *testing.T) {
	t.Helper()
	if err := os.Remove(p.fault.Reached(p.directory)); err != nil {
		t.Fatal(err)
	}
}
