package faults

import (
	"fmt"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/migration"
)

// beforeLayers is the point just before the target learns what it lacks of the image. All other work
// continues meanwhile until the freeze is prepared.
var beforeLayers = agent.Fault{Side: "source", Step: "layers", When: "before"}

// layersFaults lists the faults while layers are sent.
func layersFaults() (all []fault) {
	for _, k := range []kind{killSource, killTarget, killBoth, linkBlinks, linkLoses, stepFails, userStops,
		agentEnds} {
		all = append(all, fault{"source", "layers", "before", k})
	}
	return all
}

// TestLayersFaults injects them while rounds go on.
func TestLayersFaults(t *testing.T) { runFaults(t, migration.PreCopy, layersFaults(), 4) }

// TestLayersFaultsCold injects them while nothing else is left to do.
func TestLayersFaultsCold(t *testing.T) { runFaults(t, migration.Cold, layersFaults(), 10) }

// TestLayersFaultsRestart injects them while files are copied.
func TestLayersFaultsRestart(t *testing.T) { runFaults(t, migration.Restart, layersFaults(), 10) }

// lacksImage reports whether a fault needs a target without the image.
func (f fault) lacksImage() bool { return f.step == beforeLayers.Step }

// forgetImage removes the image from a node.
func (w *world) forgetImage(t *testing.T, node string) {
	t.Helper()
	eventually(t, "the image to be removed", func() error {
		if out, err := w.godwit(t.Context(), node, "image", "rm", container); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// TestRoundsBesideLayers: memory and files are at the target before the layers are, the container is not
// frozen before that, and then it moves.
func TestRoundsBesideLayers(t *testing.T) {
	w := newWorldOf(t, migration.PreCopy, patient)
	w.loadRedis(t, "b")
	for _, mode := range []migration.Mode{migration.PreCopy, migration.PostCopy, migration.Hybrid,
		migration.PreCopy} {
		w.mode = mode
		w.meet(t)
		from, to := w.at, other(w.at)
		w.forgetImage(t, to)
		w.set(t, from, beforeLayers, agent.FaultPause)
		id := w.begin(t, from, to)
		w.reach(t, from, beforeLayers)
		eventually(t, "rounds beside layers", func() error {
			if r, _ := w.report(t, from, id); len(r.Rounds) == 0 || len(r.FileRounds) == 0 {
				return fmt.Errorf("%d rounds of memory, %d of files", len(r.Rounds), len(r.FileRounds))
			}
			return nil
		})
		w.clientGoesOn(t)
		w.goOn(t, from, beforeLayers)
		r := w.endMoved(t, from, id)
		if r.Layers == nil || len(r.Layers.Taken) != 1 || r.Layers.Taken[0].Kind != "source" ||
			r.Layers.Here+r.Layers.Taken[0].Layers != r.Layers.Count {
			t.Errorf("%s: layers: %+v", mode, r.Layers)
		}
		w.memoryIsRight(t)
	}
	w.clientIsHappy(t)
}

// endMoved waits until the container has moved.
func (w *world) endMoved(t *testing.T, from, id string) migration.Report {
	t.Helper()
	w.settle(t, id)
	w.unset(t)
	r, _ := w.report(t, from, id)
	if w.at == from || r.Result != migration.Moved {
		t.Fatalf("it is on %s: %s: %s", w.at, r.Result, deref(r.Error))
	}
	w.clientGoesOn(t)
	return r
}
