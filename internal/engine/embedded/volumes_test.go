package embedded

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// TestRemoveVolumeThatIsAMount checks that a directory at which something is mounted is only emptied.
func TestRemoveVolumeThatIsAMount(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeVolume(dir); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// TestValidateVolumes refuses impossible volumes, and volumes with which a peer could do harm.
func TestValidateVolumes(t *testing.T) {
	long := "/" + strings.Repeat("x", maxVolumePath)
	for what, volumes := range map[string][]engine.Volume{
		"kind":              {{Kind: "disk", Name: "v", Path: "/v"}},
		"named with source": {{Name: "v", Source: "/s", Path: "/v"}},
		"named with size":   {{Name: "v", SizeBytes: 1, Path: "/v"}},
		"bind with name":    {{Kind: engine.Bind, Name: "v", Source: "/s", Path: "/v"}},
		"bind of nothing":   {{Kind: engine.Bind, Path: "/v"}},
		"bind of all":       {{Kind: engine.Bind, Source: "/", Path: "/v"}},
		"bind not clean":    {{Kind: engine.Bind, Source: "/a/../b", Path: "/v"}},
		"bind relative":     {{Kind: engine.Bind, Source: "a", Path: "/v"}},
		"bind zero":         {{Kind: engine.Bind, Source: "/a\x00b", Path: "/v"}},
		"bind too long": {{Kind: engine.Bind, Source: "/" + strings.Repeat("x", maxSourcePath),
			Path: "/v"}},
		"bind twice": {{Kind: engine.Bind, Source: "/a", Path: "/v"},
			{Kind: engine.Bind, Source: "/a", Path: "/w"}},
		"bind in bind": {{Kind: engine.Bind, Source: "/a/b", Path: "/v"},
			{Kind: engine.Bind, Source: "/a", Path: "/w"}},
		"tmpfs with source":  {{Kind: engine.Tmpfs, Source: "/s", Path: "/v"}},
		"tmpfs read-only":    {{Kind: engine.Tmpfs, Path: "/v", ReadOnly: true}},
		"tmpfs of less than": {{Kind: engine.Tmpfs, Path: "/v", SizeBytes: -1}},
		"tmpfs too large":    {{Kind: engine.Tmpfs, Path: "/v", SizeBytes: maxTmpfs + 1}},
		"path too long":      {{Kind: engine.Tmpfs, Path: long}},
		"one place":          {{Kind: engine.Tmpfs, Path: "/v"}, {Name: "v", Path: "/v"}},
	} {
		if err := validateVolumes(engine.Definition{Volumes: volumes}); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
	good := []engine.Volume{
		{Name: "v", Path: "/v"}, {Kind: engine.Named, Name: "w", Path: "/w"},
		{Kind: engine.Bind, Source: "/a", Path: "/v/a", ReadOnly: true},
		{Kind: engine.Bind, Source: "/ab", Path: "/ab"}, {Kind: engine.Tmpfs, Path: "/t"},
		{Kind: engine.Tmpfs, Path: "/t/u", SizeBytes: 1},
	}
	if err := validateVolumes(engine.Definition{Volumes: good}); err != nil {
		t.Error(err)
	}
}

// TestArrivalLeavesParents makes an arrival create directories above a host directory. Before the arrival
// is discarded, somebody else puts something into one of them.
func TestArrivalLeavesParents(t *testing.T) {
	n := newTestNode(t)
	top := t.TempDir()
	d := engine.Definition{Volumes: []engine.Volume{{Kind: engine.Bind, Source: top + "/a/b/c", Path: "/v"}}}
	record := n.arrivalRecord(d, "")
	if err := makeArriving(record.Made); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{top + "/a/b/c/came", top + "/a/other"} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.unmakeVolumes(t.Context(), strings.Repeat("0", 64), record.Made); err != nil {
		t.Fatal(err)
	}
	if durable.Exists(top + "/a/b") {
		t.Error("what was made is left")
	}
	if !durable.Exists(top + "/a/other") {
		t.Error("what somebody else made has gone")
	}
}

// TestArrivalLeavesWhatIsMountedSince checks that discarding an arrival removes nothing of what was mounted
// meanwhile on an empty directory that the arrival had filled.
func TestArrivalLeavesWhatIsMountedSince(t *testing.T) {
	n := newTestNode(t)
	top := t.TempDir()
	record := n.arrivalRecord(
		engine.Definition{Volumes: []engine.Volume{{Kind: engine.Bind, Source: top, Path: "/v"}}}, "")
	undo := func() {
		t.Helper()
		if err := n.unmakeVolumes(t.Context(), strings.Repeat("0", 64), record.Made); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(top, "file")
	write := func() {
		t.Helper()
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if err := unix.Mount("tmpfs", top, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
	write()
	undo()
	if !durable.Exists(file) {
		t.Error("what is mounted there was emptied")
	}
	if err := unix.Unmount(top, 0); err != nil {
		t.Fatal(err)
	}
	undo()
	if durable.Exists(file) {
		t.Error("what came is left")
	}
}

// TestArrivalOfAnEarlierVersion checks that volumes named by an earlier version's record are removed with
// the arrival.
func TestArrivalOfAnEarlierVersion(t *testing.T) {
	n := newTestNode(t)
	var record arrivalRecord
	if err := json.Unmarshal([]byte(`{"volumes":["made"],"netns":"/run/netns/x"}`), &record); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"made", "other"} {
		if err := os.MkdirAll(filepath.Join(n.paths.volume(name), "content"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.unmakeVolumes(t.Context(), strings.Repeat("0", 64), n.made(record)); err != nil {
		t.Fatal(err)
	}
	if durable.Exists(n.paths.volume("made")) || !durable.Exists(n.paths.volume("other")) {
		t.Error("another one was removed than it has made")
	}
}

// TestReservedBinds checks that no directory of the engine is mounted into an arriving container, whether
// the volume would be filled or stays.
func TestReservedBinds(t *testing.T) {
	n := newTestNode(t)
	for _, stays := range []bool{false, true} {
		d := engine.Definition{Volumes: []engine.Volume{{Kind: engine.Bind, Source: n.paths.volumes(),
			Path: "/v", Stays: stays}}}
		if problems, err := n.reserveVolumes(nil, d); err != nil || len(problems) != 1 {
			t.Errorf("stays %t: %v, %v", stays, problems, err)
		}
	}
}
