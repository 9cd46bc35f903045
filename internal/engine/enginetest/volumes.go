package enginetest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

func withVolumes(volumes ...engine.Volume) func(*engine.Definition) {
	return func(d *engine.Definition) { d.Volumes = volumes }
}

// staying returns a definition of a move in which these volumes stay.
func staying(d engine.Definition, keys ...string) engine.Definition {
	d.Volumes = slices.Clone(d.Volumes)
	for i, v := range d.Volumes {
		d.Volumes[i].Stays = slices.Contains(keys, v.Key())
	}
	return d
}

// testMoveVolumes moves a container with a volume of each kind. Both nodes are on one machine, so they
// share its host directory.
func testMoveVolumes(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	host := t.TempDir()
	const script = `echo own >/own/file; for d in own/deep own/deep/fast fast/slow; do echo $d >/$d/file; done
		echo fast >/fast/file; echo host >/host/file; echo own >/left/file; exec 3<>/host/file
		exec 4>/fast/open; echo ready; while :; do sleep 0.05; done`
	d := run(t, a, script, withVolumes(
		engine.Volume{Name: "own", Path: "/own"},
		engine.Volume{Kind: engine.Tmpfs, Path: "/fast", SizeBytes: 3 << 20},
		engine.Volume{Kind: engine.Bind, Source: host, Path: "/host"},
		engine.Volume{Name: "left", Path: "/left"},
		engine.Volume{Name: "deep", Path: "/own/deep"},
		engine.Volume{Kind: engine.Tmpfs, Path: "/own/deep/fast"},
		engine.Volume{Name: "slow", Path: "/fast/slow"}))
	said(t, a, d.ID, "ready")
	moveStaying(t, a, b, d.ID, "/host", "left")
	look := "cat /own/deep/file /own/deep/fast/file /fast/slow/file /own/file /fast/file /host/file; ls " +
		"/left; df -k /fast | tail -1 | awk '{print $2}'"
	if out, _ := execute(t, b, d.ID,
		look); out != "own/deep\nown/deep/fast\nfast/slow\nown\nfast\nhost\n3072\n" {
		t.Errorf("its volumes at the target: %q", out)
	}
	if err := os.WriteFile(filepath.Join(host, "file"), []byte("changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _ := execute(t, b, d.ID, "cat /host/file"); out != "changed\n" {
		t.Errorf("the host directory at the target: %q", out)
	}
	for _, v := range state(t, b, d.ID).Definition.Volumes {
		if v.Stays {
			t.Errorf("%s is never removed", v)
		}
	}
	for name, want := range map[string]bool{"own": false, "left": true} {
		if has := hasVolume(t, a, name); has != want {
			t.Errorf("volume %s at the source after the move: %v", name, has)
		}
	}
}

func hasVolume(t *testing.T, n Node, name string) bool {
	t.Helper()
	all, err := n.Volumes(t.Context())
	must(t, err)
	return slices.ContainsFunc(all, func(v engine.StoredVolume) bool { return v.Name == name })
}

// testArriveVolumes checks that an arrival that never ran leaves volumes and host directories unchanged.
func testArriveVolumes(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, "echo x >/new/x; echo x >/empty/x; echo ready; sleep 60", withVolumes(
		engine.Volume{Name: "new", Path: "/new"}, engine.Volume{Name: "empty", Path: "/empty"},
		engine.Volume{Name: "full", Path: "/full"}))
	said(t, a, d.ID, "ready")
	check(t, b, "chmod 741 /empty; echo b >/full/file", "", withVolumes(
		engine.Volume{Name: "empty", Path: "/empty"}, engine.Volume{Name: "full", Path: "/full"}))
	problems, err := b.Reserve(t.Context(), state(t, a, d.ID).Definition)
	must(t, err)
	if len(problems) != 1 || problems[0].What != "volume full" ||
		!strings.Contains(problems[0].Remedy, "full=skip") {
		t.Errorf("a volume with files that is there: %+v", problems)
	}
	m := prepareStaying(t, a, b, d.ID, "full")
	if _, err := m.arrival.TreePath(files.VolumeOf, "full"); err == nil {
		t.Error("what stays can be written to")
	}
	m.freeze(t)
	must(t, m.departure.Close())
	must(t, m.arrival.Close())
	again := b.Reopen(t)
	var shown []string
	must(t, again.Salvage(t.Context(), d.ID, func(tree files.Tree) error {
		shown = append(shown, string(tree.Kind)+" "+tree.Name)
		_, err := os.Lstat(tree.Path)
		return err
	}))
	if want := []string{"writable ", "volume new", "volume empty"}; !slices.Equal(shown, want) {
		t.Errorf("Salvage shows %q, want %q", shown, want)
	}
	must(t, again.Discard(t.Context(), d.ID))
	must(t, a.Resume(t.Context(), d.ID))
	if hasVolume(t, b, "new") {
		t.Error("a volume that was made is left")
	}
	check(t, b, "ls -A /empty; stat -c %a /empty; cat /full/file", "741\nb\n", withVolumes(
		engine.Volume{Name: "empty", Path: "/empty"}, engine.Volume{Name: "full", Path: "/full"}))
}

func testStoredVolumes(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "echo x >/data/x; sleep 60", withVolumes(engine.Volume{Name: "data", Path: "/data"}))
	all, err := n.Volumes(t.Context())
	must(t, err)
	if len(all) != 1 || all[0].Name != "data" || !slices.Equal(all[0].Containers, []string{d.Name}) {
		t.Errorf("Volumes: %+v", all)
	}
	if path, err := n.VolumePath(d.Volumes[0]); err != nil || path != all[0].Path {
		t.Errorf("VolumePath: %q, %v", path, err)
	}
	for _, bad := range []engine.Volume{{Name: ".."}, {Kind: engine.Bind, Source: "/a/../b"},
		{Kind: engine.Bind, Source: filepath.Dir(all[0].Path)}, {Kind: engine.Tmpfs, Path: "/x"}} {
		if path, err := n.VolumePath(bad); err == nil {
			t.Errorf("path of %+v: %s", bad, path)
		}
	}
	if err := n.RemoveVolume(t.Context(), "data"); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("a volume that a container has is removed: %v", err)
	}
	must(t, n.Remove(t.Context(), d.ID, true))
	must(t, n.RemoveVolume(t.Context(), "data"))
	for _, name := range []string{"data", "..", "../x", ""} {
		if err := n.RemoveVolume(t.Context(), name); !errors.Is(err, engine.ErrNoVolume) {
			t.Errorf("volume %q that is not there: %v", name, err)
		}
	}
}

func testSharing(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	host := t.TempDir()
	must(t, os.Mkdir(filepath.Join(host, "below"), 0o755))
	d := run(t, n, "sleep 60", withVolumes(engine.Volume{Name: "data", Path: "/data"},
		engine.Volume{Kind: engine.Bind, Source: host, Path: "/host"},
		engine.Volume{Kind: engine.Tmpfs, Path: "/fast"}))
	other := run(t, n, "sleep 60", withVolumes(engine.Volume{Name: "data", Path: "/x"},
		engine.Volume{Kind: engine.Bind, Source: host + "/below", Path: "/y"},
		engine.Volume{Kind: engine.Tmpfs, Path: "/fast"}))
	all, err := n.List(t.Context())
	must(t, err)
	for i, want := range [][]string{{other.Name}, {other.Name}, nil} {
		if got := engine.Sharing(all, d.ID, d.Volumes[i]); !slices.Equal(got, want) {
			t.Errorf("%s is shared with %v, want %v", d.Volumes[i], got, want)
		}
	}
}
