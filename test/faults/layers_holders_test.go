package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

// bulkLayer is the size of each of two layers that only the image of these tests has.
const bulkLayer = 10 << 20

// TestLayersOfAThirdNode: a container moves from a to b over a slow link, and c, which is nearer to b, has
// its image. The layers come from there, even if b's agent is killed meanwhile and everything begins again;
// if c's agent is killed meanwhile, the rest comes from a.
func TestLayersOfAThirdNode(t *testing.T) {
	t.Parallel()
	w := newNodesOf(t, lab.Config{Nodes: 3}, "8s")
	near, far := lab.Link{BandwidthBitsPerSecond: 60_000_000, RTT: time.Millisecond},
		lab.Link{BandwidthBitsPerSecond: 30_000_000, RTT: 60 * time.Millisecond}
	for pair, link := range map[[2]string]lab.Link{{"a", "b"}: far, {"b", "c"}: near, {"a", "c"}: near} {
		if err := w.lab.SetLink(pair[0], pair[1], link); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "godwit-faults-") // all nodes see it: they are on one machine
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	archive, err := labimage.OfProgram("bulk", buildHelper(t, t.TempDir()), dir, bulkLayer, bulkLayer)
	if err != nil {
		t.Fatal(err)
	}
	w.must(t, "a", "image", "load", archive)
	w.must(t, "c", "image", "load", archive)
	config := pages.Config{Size: 1 << 20, Hot: 1 << 20, Rate: 1 << 20, Check: 1 << 20}
	args := append([]string{"run", "-d", "--name", container, "localhost/bulk", labimage.ProgramPath},
		config.Args()...)
	w.id = strings.TrimSpace(w.must(t, "a", args...))

	t.Run("agent of the target killed", func(t *testing.T) {
		id := w.beginLayers(t)
		w.killAgent(t, "b")
		w.reviveAgents(t)
		w.settle(t, id)
		if w.at != "a" {
			t.Fatalf("it has moved to %s", w.at)
		}
		if left, err := filepath.Glob(filepath.Join(w.layers(t), ".new-*")); err != nil || len(left) > 0 {
			t.Errorf("half a layer is left: %v, %v", left, err)
		}
	})
	t.Run("from the third node", func(t *testing.T) {
		id := w.beginLayers(t)
		w.settle(t, id)
		nearest := w.taken(t, id)["c"]
		if nearest.Kind != "node" || nearest.Error != "" || nearest.Bytes < bulkLayer {
			t.Errorf("from c: %+v", nearest)
		}
	})
	w.isBack(t)
	t.Run("agent of the third node killed", func(t *testing.T) {
		id := w.beginLayers(t)
		w.killAgent(t, "c")
		w.settle(t, id)
		from := w.taken(t, id)
		if from["c"].Error == "" || from["c"].Layers > 1 || from["a"].Kind != "source" ||
			from["a"].Error != "" || from["a"].Layers < 1 {
			t.Errorf("%+v", from)
		}
	})
	w.must(t, w.at, "rm", "--force", container)
}

// layers returns node b's directory of layers.
func (w *world) layers(t *testing.T) string {
	t.Helper()
	root, err := w.lab.Root("b")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "var/lib/godwit/layers/sha256")
}

// beginLayers begins to move the container to b, and returns when part of a layer is there.
func (w *world) beginLayers(t *testing.T) string {
	t.Helper()
	w.meet(t)
	eventually(t, "b to reach c", func() error {
		reply, err := w.agents["b"].Nodes(t.Context(), &api.NodesRequest{})
		if err != nil {
			return err
		}
		for _, node := range reply.Nodes {
			if node.Name == "c" && node.Reachable {
				return nil
			}
		}
		return errors.New("it does not")
	})
	id := w.begin(t, "a", "b")
	eventually(t, "some of a layer to come", func() error {
		there, err := filepath.Glob(filepath.Join(w.layers(t), "*"))
		if err != nil {
			return err
		}
		for _, path := range there {
			if size, err := files.TreeSize(t.Context(), files.Tree{Path: path}); err == nil &&
				size.Bytes > 1<<20 {
				return nil
			}
		}
		return fmt.Errorf("%d layers", len(there))
	})
	return id
}

// taken returns the origins of the layers in a migration that has moved the container.
func (w *world) taken(t *testing.T, id string) map[string]migration.LayersTaken {
	t.Helper()
	r, _ := w.report(t, "a", id)
	if w.at != "b" || r.Layers == nil {
		t.Fatalf("it is on %s: %s: %s", w.at, r.Result, deref(r.Error))
	}
	from := map[string]migration.LayersTaken{}
	layers := r.Layers.Here
	for _, taken := range r.Layers.Taken {
		from[taken.From] = taken
		layers += taken.Layers
	}
	if layers != r.Layers.Count {
		t.Errorf("layers: %+v", r.Layers)
	}
	return from
}

// isBack moves the container to a again, and removes its image from b.
func (w *world) isBack(t *testing.T) {
	t.Helper()
	w.meet(t)
	id := w.begin(t, "b", "a")
	w.settle(t, id)
	if r, _ := w.report(t, "b", id); w.at != "a" {
		t.Fatalf("it has not come back: %s", deref(r.Error))
	}
	eventually(t, "the image to be removed", func() error {
		if out, err := w.godwit(t.Context(), "b", "image", "rm", "localhost/bulk"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if left, err := os.ReadDir(w.layers(t)); err != nil || len(left) > 0 {
		t.Errorf("layers are left: %v, %v", left, err)
	}
}
