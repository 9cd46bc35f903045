package e2e

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

// layersImage has layers that no other image has.
const layersImage = "localhost/layers"

// hasLayersImage reports whether a node has the whole image.
func hasLayersImage(t *testing.T, node string) bool {
	t.Helper()
	return strings.Contains(must(t, node, "image", "ls"), layersImage)
}

// layersReport moves the container and returns the result for layers.
func (c *container) layersReport() (layers *migration.Layers, sent int64) {
	c.t.Helper()
	var r struct {
		Result string            `json:"result"`
		Layers *migration.Layers `json:"layers"`
		Bytes  migration.Bytes   `json:"bytes"`
	}
	out := must(c.t, c.node, "migrate", c.name, c.other(), "--mode", cold, "--json")
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Result != "moved" {
		c.t.Fatalf("%v: %s", err, out)
	}
	c.node = c.other()
	return r.Layers, r.Bytes.Layers
}

// layersCancelled fetches layers so slowly that there is time to cancel that.
func (c *container) layersCancelled() {
	c.t.Helper()
	must(c.t, c.node, "stage", c.name, c.other(), "--layers-only", "--bandwidth-limit", "100kbit", "--detach")
	must(c.t, c.node, "stage", "rm", c.name, c.other())
	staged := c.stages(c.node)
	if last := staged[len(staged)-1]; last.State != "ended" ||
		!strings.Contains(last.Error, "removed by a user") {
		c.t.Errorf("layers that a user wanted no more: %+v", last)
	}
	if hasLayersImage(c.t, c.other()) {
		c.t.Error("the image is there although nobody waited for it")
	}
	must(c.t, c.node, "stage", "rm", c.name, c.other()) // removes it from the list
	if left := c.stages(c.node); len(left) != 0 {
		c.t.Errorf("on the list: %+v", left)
	}
	again, err := godwit(c.t.Context(), c.node, "stage", "rm", c.name, c.other())
	if err != nil || again.code == 0 {
		c.t.Errorf("ended twice: %v, %+v", err, again)
	}
}

// TestLayers: layers are fetched when a container starts, when a user requests it, or when it moves;
// existing layers are not.
func TestLayers(t *testing.T) {
	const bulk = 1 << 20
	archive, err := labimage.OfProgram("layers", inWorld("godwit-lab"), world.directory, bulk, bulk/2)
	if err != nil {
		t.Fatal(err)
	}
	if err := loadImage(t.Context(), "a", archive); err != nil {
		t.Fatal(err)
	}
	config := pages.Config{Size: 1 << 20, Hot: 1 << 20, Rate: 1 << 20, Check: 1 << 20}
	args := append([]string{labimage.ProgramPath}, config.Args()...)
	refused, err := godwit(t.Context(), "a",
		append([]string{"run", "-d", "--name", "nowhere", "--stage-to", "b,z", layersImage}, args...)...)
	if err != nil || refused.code != 1 || !strings.Contains(refused.stderr, "no such node") {
		t.Errorf("%v, exit code %d: %s", err, refused.code, refused.stderr)
	}
	c := runImage(t, layersImage, []string{"--stage-to", "b"}, args...)
	c.eventually("the image at b", func() bool { return hasLayersImage(t, "b") })
	if staged := c.stages("a"); len(staged) != 1 || staged[0].Kind != "layers" ||
		staged[0].State == "ended" || staged[0].Target != "b" {
		t.Errorf("staged: %+v", staged)
	}
	if layers, sent := c.layersReport(); layers != nil || sent != 0 {
		t.Errorf("%d bytes of layers were sent that were there: %v", sent, layers)
	}
	c.layersReport()
	must(t, "b", "image", "rm", layersImage)
	c.layersCancelled()
	var s staged
	if err := json.Unmarshal([]byte(must(t, "a", "stage", c.name, "b", "--layers-only", "--json")),
		&s); err != nil || s.State != "ready" || s.SentBytes < bulk {
		t.Errorf("staged: %v: %+v", err, s)
	}
	if !hasLayersImage(t, "b") {
		t.Error("b has not the image although it was staged")
	}
	must(t, "b", "image", "rm", layersImage)
	layers, sent := c.layersReport()
	if layers == nil || layers.Count != 3 || len(layers.Taken) != 1 || layers.Taken[0].Kind != "source" ||
		layers.Taken[0].Error != "" ||
		layers.Here+layers.Taken[0].Layers != 3 || layers.Taken[0].Bytes < bulk || sent < bulk {
		t.Errorf("%d bytes of layers: %+v", sent, layers)
	}
}

// TestLayerPartly: of a layer that was rebuilt with a small change, only the change is sent to a node with
// the old version.
func TestLayerPartly(t *testing.T) {
	const repository = "localhost/rebuilt"
	base, err := baseLayer(world.directory)
	if err != nil {
		t.Fatal(err)
	}
	bulk := make([]byte, 16<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(bulk)
	load := func(node, tag string) {
		archive, err := imageArchive(repository+":"+tag,
			append(base, file("bulk", string(bulk)), file("tag", tag)))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(world.directory, tag+".tar")
		if err := os.WriteFile(path, archive, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := loadImage(t.Context(), node, path); err != nil {
			t.Fatal(err)
		}
	}
	load("b", "old")
	copy(bulk[5<<20:], bytes.Repeat([]byte("changed"), 10000))
	load("a", "new")
	c := runImage(t, repository+":new", nil, "sh", "-c", "echo ready; cat tag; while :; do sleep 1; done")
	var s staged
	out := must(t, "a", "stage", c.name, "b", "--layers-only", "--bandwidth-limit", "50mbit", "--json")
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.State != "ready" || s.SentBytes == 0 ||
		s.SentBytes > 2<<20 {
		t.Errorf("staged: %v: %+v", err, s)
	}
	if layers, sent := c.layersReport(); layers != nil || sent != 0 {
		t.Errorf("%d bytes of layers were sent that were there: %v", sent, layers)
	}
	if tag := must(t, "b", "exec", c.name, "cat", "/tag"); tag != "new" {
		t.Errorf("at the target it is %q", tag)
	}
}
