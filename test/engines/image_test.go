package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
)

// bulk is the size of the layer that only node a has.
const bulk = 24 << 20

// makeOnA makes an image on node a: an incompressible layer on top of the common image.
func (c cli) makeOnA(t *testing.T, name string, seed uint64) (made string) {
	t.Helper()
	made = "only-" + name + ":1"
	content := make([]byte, bulk)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(content) // never fails
	path := filepath.Join(world.directory, name+"-bulk")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, node := range nodes() {
			_, _ = world.lab.Exec(context.Background(), node, string(c), "rmi", "--force", made)
		}
	})
	in(t, "a", string(c), "create", "--name", name+"-make", "--network", "none", image, "/bin/sh")
	in(t, "a", string(c), "cp", path, name+"-make:/bulk")
	in(t, "a", string(c), "commit", "--change", "LABEL made=here", name+"-make", made)
	in(t, "a", string(c), "rm", name+"-make")
	return made
}

// onlyOnA makes such an image, and starts a container from it.
func (c cli) onlyOnA(t *testing.T, seed uint64) (name, made string) {
	t.Helper()
	name = strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Name(), "Test"), "/", "-"))
	made = c.makeOnA(t, name, seed)
	t.Cleanup(func() {
		for _, node := range nodes() {
			// it is on one of them, or on none
			_, _ = world.lab.Exec(context.Background(), node, c.remove(name)...)
		}
	})
	in(t, "a", string(c), "run", "--detach", "--name", name, "--network", "none", made, "/bin/sh", "-c",
		count)
	c.counted(t, "a", name, 1)
	return name, made
}

// movedLayers moves a container to b and returns how its image's layers came there.
func movedLayers(t *testing.T, ref string) migration.Layers {
	t.Helper()
	var report struct {
		Layers migration.Layers `json:"layers"`
	}
	out := in(t, "a", "godwit", "migrate", "--mode", "cold", "--json", ref, "b")
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return report.Layers
}

// spoolEmpty checks that no partial image is left.
func spoolEmpty(t *testing.T, node string) {
	t.Helper()
	if left := in(t, node, "sh", "-c", "ls -A /var/lib/godwit/spool"); left != "" {
		t.Errorf("in the spool of %s: %s", node, left)
	}
}

// spooled returns the bytes of partial layers at b.
func spooled(t *testing.T) (bytes int) {
	t.Helper()
	// none: 0
	_, _ = fmt.Sscan(in(t, "b", "sh", "-c", "cat /var/lib/godwit/spool/.new-* "+
		"/var/lib/godwit/spool/*.part 2>/dev/null | wc -c"), &bytes)
	return bytes
}

// TestDockerImage: the parts of an image that the target lacks move, too, and Docker has the image there as
// if it had been loaded.
func TestDockerImage(t *testing.T) {
	name, image := inDocker.onlyOnA(t, 1)
	const same = "taken:1" // a name that another image of b has
	in(t, "a", "docker", "tag", image, same)
	in(t, "b", "docker", "tag", "godwit-test:1", same)
	t.Cleanup(func() {
		for _, node := range nodes() {
			_, _ = world.lab.Exec(context.Background(), node, "docker", "rmi", same)
		}
	})
	others := in(t, "b", "docker", "inspect", "--format", "{{.Id}}", same)
	layers := movedLayers(t, "docker:"+name)
	if layers.Count != 2 || layers.Here != 1 || len(layers.Taken) != 1 || layers.Taken[0].Layers != 1 {
		t.Errorf("layers: %+v", layers)
	}
	counted(t, "b", name, counted(t, "b", name, 1))
	id := in(t, "a", "docker", "inspect", "--format", "{{.Id}}", image)
	for what, want := range map[string]string{image: id, same: others} {
		if got := in(t, "b", "docker", "inspect", "--format", "{{.Id}}", what); got != want {
			t.Errorf("image %s of b is %s, want %s", what, got, want)
		}
	}
	if listed := in(t, "b", "docker", "images", "--no-trunc", "--format",
		"{{.Repository}}:{{.Tag}} {{.ID}}"); !strings.Contains(listed, image+" "+id) {
		t.Errorf("images of b: %s", listed)
	}
	if got := inspected(t, "b", name, ".Image") + inspected(t, "b", name, ".Config.Image"); got != id+image {
		t.Errorf("its image is %s", got)
	}
	spoolEmpty(t, "b")
	migrate(t, name, "b", "a", "pre-copy") // that node has the image
	counted(t, "a", name, 1)
	in(t, "b", "docker", "rmi", image)
	in(t, "a", "godwit", "stage", "docker:"+name, "b", "--layers-only")
	// a name moves with a container
	if got := in(t, "b", "docker", "inspect", "--format", "{{.Id}} {{.RepoTags}}", id); got != id+" []" {
		t.Errorf("staged image is %s", got)
	}
	in(t, "b", "docker", "rmi", id)
	if byContainerd(t, "b") {
		t.Run("other-store", testOtherStore)
	}
}

// byContainerd reports whether a Docker's images are in its containerd.
func byContainerd(t *testing.T, node string) bool {
	t.Helper()
	return strings.Contains(in(t, node, "docker", "info", "--format", "{{.DriverStatus}}"),
		"io.containerd.snapshotter")
}

// startDockerAlone restarts Docker on a node where containerd runs. Docker would otherwise use that
// containerd, which knows none of its containers.
func startDockerAlone(ctx context.Context, node string) error {
	const socket = "/run/containerd/containerd.sock"
	if _, err := world.lab.Exec(ctx, node, "mv", socket, socket+".hidden"); err != nil {
		return err
	}
	err := world.lab.Engines().StartDocker(ctx, node)
	_, back := world.lab.Exec(ctx, node, "mv", socket+".hidden", socket)
	return errors.Join(err, back)
}

// testOtherStore moves an image from a Docker with its own image store to one that uses its containerd's,
// and back. The ID is the image's configuration in the one, and its manifest or index in the other.
func testOtherStore(t *testing.T) {
	restart := func() {
		t.Helper()
		ctx := context.Background()
		err := world.lab.Engines().StopDocker(ctx, "a")
		if err == nil {
			err = startDockerAlone(ctx, "a")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(restart) // with its earlier flags
	t.Setenv("GODWIT_LAB_DOCKER_STORE", "")
	restart()
	if err := inDocker.importImage(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	name, made := inDocker.onlyOnA(t, 7)
	id := in(t, "a", "docker", "inspect", "--format", "{{.Id}}", made)
	movedLayers(t, "docker:"+name)
	counted(t, "b", name, counted(t, "b", name, 1))
	there := in(t, "b", "docker", "inspect", "--format", "{{.Id}}", made)
	if got := inspected(t, "b", name, ".Image"); got != there || there == id {
		t.Errorf("its image is %s; it came as %s and is called %s", got, id, there)
	}
	in(t, "a", "docker", "rmi", made)
	migrate(t, name, "b", "a", "cold")
	counted(t, "a", name, 1)
	if got := in(t, "a", "docker", "inspect", "--format", "{{.Id}}", made); got != id ||
		inspected(t, "a", name, ".Image") != id {
		t.Errorf("back, its image is %s, and was %s", got, id)
	}
}

// linkLost begins to move a container with its image to b, loses the link when most of the image has come,
// and then moves the container: the received part is not sent again. With -short it only moves the
// container, except for Docker's.
func (c cli) linkLost(t *testing.T, name string, stays func()) migration.Layers {
	t.Helper()
	ref := string(c) + ":" + name
	if testing.Short() && c != inDocker {
		return movedLayers(t, ref)
	}
	fast, err := world.lab.Link("a", "b")
	if err != nil {
		t.Fatal(err)
	}
	change := func(change func(*lab.Link)) {
		t.Helper()
		if err := world.lab.ChangeLink("a", "b", change); err != nil {
			t.Fatal(err)
		}
	}
	change(func(l *lab.Link) { l.BandwidthBitsPerSecond = 10_000_000 })
	t.Cleanup(func() { change(func(l *lab.Link) { *l = fast }) })
	done := c.begin(name, "cold")
	eventually(t, "most of the layer has come", func() bool { return spooled(t) > bulk*2/3 })
	if err := world.lab.LinkDown("a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("it moved")
	}
	if err := world.lab.LinkUp("a", "b"); err != nil {
		t.Fatal(err)
	}
	stays()
	eventually(t, "the nodes know each other again",
		func() bool { return tried(t, "a", "godwit", "plan", ref, "b") == nil })
	layers := movedLayers(t, ref)
	for _, taken := range layers.Taken { // empty if everything had come when the link went down
		if taken.Partly != 1 || taken.Bytes > bulk*2/3 {
			t.Errorf("layers: %+v", taken)
		}
	}
	spoolEmpty(t, "b")
	return layers
}

// TestDockerImageLinkLost: the part of a layer that came before the link was lost is not sent again.
func TestDockerImageLinkLost(t *testing.T) {
	name, made := inDocker.onlyOnA(t, 2)
	inDocker.linkLost(t, name, func() {
		counted(t, "a", name, counted(t, "a", name, 1))
		if tried(t, "b", "docker", "inspect", made) == nil {
			t.Error("an image is there of which a part has come")
		}
		nothing(t, "b", name)
	})
	counted(t, "b", name, 1)
}

// TestPodmanImage: the parts of an image that the target lacks move, too, even after a lost link, and
// Podman has the image there as if it had been loaded.
func TestPodmanImage(t *testing.T) {
	name, made := inPodman.onlyOnA(t, 4)
	stored := func() string {
		return in(t, "b", "cat",
			"/var/lib/containers/storage/overlay-layers/layers.json")
	}
	had := stored()
	layers := inPodman.linkLost(t, name, func() {
		inPodman.counted(t, "a", name, inPodman.counted(t, "a", name, 1))
		inPodman.nothing(t, "b", name)
		if stored() != had {
			t.Error("Podman has layers of an image of which a part has come")
		}
	})
	if layers.Count != 2 || layers.Here != 1 || len(layers.Taken) > 1 {
		t.Errorf("layers: %+v", layers)
	}
	spoolEmpty(t, "b")
	inPodman.counted(t, "b", name, inPodman.counted(t, "b", name, 1))
	id := in(t, "a", "podman", "image", "inspect", "--format", "{{.Id}}", made)
	if got := in(t, "b", "podman", "image", "inspect", "--format", "{{.Id}} {{.RepoTags}} {{.Labels.made}}",
		made); got != id+" [localhost/"+made+"] here" {
		t.Errorf("image of b is %s", got)
	}
	if got := inPodman.inspected(t, "b", name, ".ImageName"); got != "localhost/"+made {
		t.Errorf("it was made from %s", got)
	}
	if left := in(t, "b", "sh", "-c", "ls -A /var/lib/godwit/engines/podman-images"); left != "" {
		t.Errorf("left of what Podman took: %s", left)
	}
	inPodman.migrate(t, name, "b", "a", "pre-copy") // that node has the image
	inPodman.counted(t, "a", name, 1)
	in(t, "b", "podman", "rmi", made)
	in(t, "a", "godwit", "stage", "podman:"+name, "b", "--layers-only")
	// a name moves with a container
	if got := in(t, "b", "podman", "image", "inspect", "--format", "{{.Id}} {{.RepoTags}}", id); got != id+
		" []" {
		t.Errorf("staged image is %s", got)
	}
	in(t, "b", "podman", "rmi", id)
}

// TestContainerdImage: the parts of an image that the target lacks move into the container's namespace,
// even after a lost link. Parts that exist in another namespace are not sent, and compressed layers are
// treated like others.
func TestContainerdImage(t *testing.T) {
	const space, id = "third", "image"
	made := inPodman.makeOnA(t, "containerd", 5)
	ref := "docker.io/library/" + made
	base, tag, _ := strings.Cut(ref, ":")
	in(t, "a", "podman", "push", "--quiet", made, "oci-archive:/tmp/only.tar:"+tag)
	in(t, "a", "ctr", "-n", space, "images", "import", "--base-name", base, "/tmp/only.tar")
	in(t, "a", "rm", "/tmp/only.tar")
	t.Cleanup(func() {
		for _, node := range nodes() {
			_, _ = world.lab.Exec(context.Background(), node, "ctr", "-n", space, "images", "rm", "--sync",
				ref)
			_, _ = world.lab.Exec(context.Background(), node, "ctr", "namespaces", "rm", space)
		}
	})
	name := ctrOf(t, space, ref, nil, count)
	inContainerd := cli("containerd")
	kept := func() string {
		return in(t, "b", "sh", "-c", "for what in leases images content; do ctr -n "+space+
			" $what ls -q; done; ctr -n "+space+" snapshots ls | grep -v ^KEY || true")
	}
	layers := inContainerd.linkLost(t, name, func() {
		ctrCounted(t, "a", name, ctrCounted(t, "a", name, 1))
		ctrNothing(t, "b", space)
		if left := kept(); left != "" {
			t.Errorf("left of an image of which a part has come: %s", left)
		}
	})
	if layers.Count != 2 || len(layers.Taken) > 1 || len(layers.Taken) == 1 && layers.Taken[0].Layers != 1 {
		t.Errorf("layers: %+v", layers)
	}
	spoolEmpty(t, "b")
	ctrCounted(t, "b", name, ctrCounted(t, "b", name, 1))
	if listed := in(t, "b", "ctr", "-n", space, "images", "check"); !strings.Contains(listed, ref) ||
		!strings.Contains(listed, "complete (3/3)") || strings.Count(listed, "sha256:") != 1 {
		t.Errorf("images of b: %s", listed)
	}
	in(t, "b", "ctr", "-n", space, "run", "--rm", ref, "another", "/bin/sh", "-c", "cat /bulk >/dev/null")
	if left := in(t, "b", "ctr", "-n", space, "leases", "ls", "-q"); left != "" {
		t.Errorf("leases of b: %s", left)
	}
	in(t, "b", "godwit", "migrate", "containerd:"+name, "a")
	ctrCounted(t, "a", name, 1)
	in(t, "b", "ctr", "-n", space, "images", "rm", "--sync", ref)
	if left := kept(); left != "" {
		t.Errorf("left without the image: %s", left)
	}
	in(t, "a", "godwit", "stage", "containerd:"+name, "b", "--layers-only")
	staged := in(t, "b", "ctr", "-n", space, "images", "ls", "-q") // a name moves with a container
	if !strings.HasPrefix(staged, "sha256:") || strings.Contains(staged, "\n") {
		t.Errorf("staged: %s", staged)
	}
	in(t, "b", "ctr", "-n", space, "images", "rm", "--sync", staged)
}

// TestDockerImageFails: whatever happens to the image at the target, the container keeps running, and
// Docker has nothing of the image there that it lacked before.
func TestDockerImageFails(t *testing.T) {
	name, image := inDocker.onlyOnA(t, 3)
	before := in(t, "b", "docker", "images", "--all", "--quiet", "--no-trunc")
	root := in(t, "b", "docker", "info", "--format", "{{.DockerRootDir}}")
	layersOf := func() string {
		return in(t, "b", "sh", "-c", "ls "+root+"/image/overlay2/layerdb/sha256 "+
			"| sort")
	}
	// where Docker puts images that it loads
	coming, places := root+"/tmp", root+"/tmp "+root+"/image/overlay2/layerdb/tmp"
	if byContainerd(t, "b") {
		ctr := "ctr -a " + in(t, "b", "docker", "info", "--format", "{{.Containerd.Address}}") + " -n moby "
		layersOf = func() string {
			return in(t, "b", "sh", "-c", "for what in leases images content; do "+
				ctr+"$what ls -q; done | sort; "+ctr+"snapshots ls | sort")
		}
		coming = root + "/containerd/daemon/io.containerd.content.v1.content/ingest"
		places = coming
	}
	had := layersOf()
	stays := func(what string) {
		t.Helper()
		counted(t, "a", name, counted(t, "a", name, 1))
		nothing(t, "b", name)
		if now := in(t, "b", "docker", "images", "--all", "--quiet", "--no-trunc"); now != before ||
			layersOf() != had {
			t.Errorf("%s: images %s, were %s", what, now, before)
		}
		if left := in(t, "b", "sh", "-c", "ls -A "+places); strings.Contains(left, "import") ||
			strings.Contains(left, "write-set") {
			t.Errorf("%s: left: %s", what, left)
		}
	}

	in(t, "b", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", coming)
	err := <-begin(name, "cold")
	in(t, "b", "umount", coming)
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("disk full: %v", err)
	}
	stays("disk full")
	if in(t, "b", "sh", "-c", "ls /var/lib/godwit/spool") == "" {
		t.Error("what has come of it is gone")
	}

	stop := fault(t, "b", agent.Fault{Side: "target", Step: "arrive", When: "before"}, agent.FaultPause)
	done := begin(name, "cold")
	stop.reached(t)
	id := in(t, "a", "docker", "inspect", "--format", "{{.Id}}", image)
	eventually(t, "the image is there", func() bool { return tried(t, "b", "docker", "rmi", id) == nil })
	stop.goOn(t)
	err = <-done
	if said := fmt.Sprint(err); err == nil || !strings.Contains(strings.ToLower(said), "no such image") &&
		!strings.Contains(said, "removed since") {
		t.Errorf("removed: %v", err)
	}
	stays("removed")

	// If the image was removed before Docker told Godwit that the image was loaded, the spool keeps
	// the layer.
	in(t, "b", "sh", "-c", "rm -f /var/lib/godwit/spool/*")
	if err := world.lab.ChangeLink("a", "b",
		func(l *lab.Link) { l.BandwidthBitsPerSecond = 10_000_000 }); err != nil {
		t.Fatal(err)
	}
	done = begin(name, "cold")
	eventually(t, "a layer comes", func() bool {
		if len(done) > 0 {
			if err := <-done; err == nil || !strings.Contains(err.Error(), "arriving") {
				t.Fatalf("the move was over before: %v", err)
			}
			done = begin(name, "cold") // b had not finished the earlier move
		}
		return spooled(t) > 1<<20
	})
	if err := world.lab.KillAgent(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("it moved although the target's agent was killed")
	}
	eventually(t, "the agent can be started",
		func() bool { return world.lab.StartAgent(t.Context(), "b", "--faults") == nil })
	if err := world.lab.ChangeLink("a", "b",
		func(l *lab.Link) { l.BandwidthBitsPerSecond = 1_000_000_000 }); err != nil {
		t.Fatal(err)
	}
	stays("agent killed")
	spoolEmpty(t, "b")
	eventually(t, "the nodes know each other again",
		func() bool { return tried(t, "a", "godwit", "plan", "docker:"+name, "b") == nil })
	migrate(t, name, "a", "b", "cold")
	counted(t, "b", name, 1)
}
