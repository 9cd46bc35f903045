package faults

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/lab"
)

// TestRecordFails makes the target fail when it has permission to run the container: it cannot record that
// the container runs. No packet of a client may have reached a socket there, because acknowledged data
// would be lost.
func TestRecordFails(t *testing.T) {
	w := newNodes(t, lab.Config{})
	w.startRedis(t)
	w.learnOrder(t)
	failures := 10
	if testing.Short() {
		failures = 3
	}
	for range failures {
		w.meet(t)
		from, to := w.at, other(w.at)
		w.set(t, to, beforeRestore, agent.FaultPause)
		id := w.begin(t, from, to)
		w.reach(t, to, beforeRestore)
		root, err := w.lab.Root(to)
		if err != nil {
			t.Fatal(err)
		}
		record := filepath.Join(root, "var/lib/godwit/containers", w.id, "resumed")
		if err := os.WriteFile(record, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.goOn(t, to, beforeRestore)
		w.end(t, from, id, false, "record that the container may run")
	}
	from := w.at
	w.end(t, from, w.begin(t, from, other(from)), true)
	w.clientIsHappy(t)
}
