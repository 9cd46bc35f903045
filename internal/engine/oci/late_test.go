package oci

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/shim"
)

// TestAside checks that what an engine writes while it starts a container does not get into what has come,
// and that the engine sees a directory with the same attributes.
func TestAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "upper")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o751|os.ModeSticky),
		os.Lchown(dir, 7, 8)); err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "came"), nil, 0o600), setAside(dir)); err != nil {
		t.Fatal(err)
	}
	shown, err := os.Stat(dir)
	if err != nil || shown.Mode() != was.Mode() || os.SameFile(shown, was) {
		t.Errorf("%v, %v; was %v", shown, err, was)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "mtab"), nil, 0o600),
		putBack([]string{dir})); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{dir: "came", asideOf(dir): "mtab"} {
		if left, err := os.ReadDir(path); err != nil || len(left) != 1 || left[0].Name() != want {
			t.Errorf("in %s: %v, %v", path, left, err)
		}
	}
	if err := setAside(dir); err == nil {
		t.Error("what is aside is replaced")
	}
}

// TestStartedOnce checks that a closed arrival is not started, that nothing is started twice, and that an
// arrival that was not started is not restored.
func TestStartedOnce(t *testing.T) {
	a := &arrival{arrivals: awayEngine(t).arrivals, expected: Expected{Late: true}}
	if a.waits() == nil {
		t.Error("an engine waits that was told nothing")
	}
	if err := a.FillFrom(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := a.begin(); err != nil {
		t.Error(err)
	}
	if _, err := a.begin(); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("twice: %v", err)
	}
	over := &arrival{arrivals: awayEngine(t).arrivals}
	if err := over.Close(); err != nil {
		t.Error(err)
	}
	if _, err := over.begin(); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("when it is over: %v", err)
	}
}

// TestUndisturbed checks that nothing is restored if another program has removed what was prepared.
func TestUndisturbed(t *testing.T) {
	restoreDir, err := shim.At(t.TempDir(), "web")
	if err != nil {
		t.Fatal(err)
	}
	a := &arrival{restoreDir: restoreDir, shm: t.TempDir()}
	if err := os.MkdirAll(restoreDir.Images(), 0o700); err != nil {
		t.Fatal(err)
	}
	if a.shmMade, err = os.Stat(a.shm); err != nil {
		t.Fatal(err)
	}
	if err := a.undisturbed(); err != nil {
		t.Error(err)
	}
	a.shm = t.TempDir()
	if a.undisturbed() == nil {
		t.Error("its /dev/shm was replaced")
	}
	a.shmMade = nil
	if err := os.Remove(restoreDir.Images()); err != nil {
		t.Fatal(err)
	}
	if a.undisturbed() == nil {
		t.Error("its restore directory is gone")
	}
}

// TestPatience checks that nothing is restored for an engine that is about to give the container up.
func TestPatience(t *testing.T) {
	for _, c := range []struct {
		patience, ago time.Duration
		is            bool
	}{{0, 24 * time.Hour, true}, {time.Hour, time.Minute, true}, {time.Hour, time.Hour, false}} {
		a := &arrival{arrivals: awayEngine(t).arrivals, expected: Expected{Late: true, Patience: c.patience}}
		if !a.Until().IsZero() {
			t.Error("an engine's patience ends that was told nothing")
		}
		_, err := a.begin()
		must(t, err)
		a.startAt = time.Now().Add(-c.ago)
		if err := a.waits(); (err == nil) != c.is {
			t.Errorf("%+v: %v", c, err)
		}
		ctx, end := a.patiently(t.Context())
		if (ctx.Err() == nil) != c.is {
			t.Errorf("%+v: %v", c, ctx.Err())
		}
		end()
	}
}

// TestOrphan checks that the engine may not start a container again while the container runs although the
// engine's start failed after the resume.
func TestOrphan(t *testing.T) {
	id := strings.Repeat("a", 64)
	b := &booted{found: Container{ID: id}}
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, b)
	must(t, err)
	must(t, save(e.records.arrivalPath(id), arrivalRecord{Boot: bootID(t)}))
	must(t, save(e.records.orphanPath(id), "timeout"))
	restoreDir, err := e.lookup.restoreDir(id)
	must(t, err)
	bundle := func(cgroup string) {
		spec := fmt.Sprintf(`{"root":{"path":"x"},"linux":{"cgroupsPath":%q}}`, cgroup)
		dir := filepath.Join(restoreDir.Path(), "bundle")
		must(t, errors.Join(os.MkdirAll(dir, 0o700),
			os.WriteFile(filepath.Join(dir, "config.json"), []byte(spec), 0o600)))
	}
	bundle(cgroupWithProcess(t))
	must(t, e.endings.settle(t.Context(), id))
	if err := e.Settled(t.Context(), id); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("it runs, and nobody is told that it does so without its engine: %v", err)
	}
	if len(b.did) > 0 ||
		!durable.Exists(e.records.arrivalPath(id)) {
		t.Errorf("it runs, and the engine was told %q", b.did)
	}
	b.gone = true
	must(t, e.endings.settle(t.Context(), id))
	if err := e.Settled(t.Context(), id); err == nil || len(b.did) > 0 ||
		!durable.Exists(e.records.arrivalPath(id)) {
		t.Errorf("it runs still, and was removed from its engine: %v, which was told %q", err, b.did)
	}
	b.gone = false
	bundle("/godwit-test-" + strings.ToLower(rand.Text()))
	must(t, errors.Join(e.endings.settle(t.Context(), id), e.Settled(t.Context(), id)))
	if len(b.did) != 1 || durable.Exists(e.records.arrivalPath(id)) {
		t.Errorf("it has ended, and the engine was told %q", b.did)
	}
}

// TestRemoveUnseen checks that a container that runs without its engine's knowledge is removed together
// with its processes, and only by force.
func TestRemoveUnseen(t *testing.T) {
	e, id := awayEngine(t), strings.Repeat("a", 64)
	b := &booted{found: Container{ID: "own", Container: engine.Container{State: engine.Exited}}}
	adapt(e, b)
	must(t, e.records.remember(id, "own"))
	restoreDir := openRestoreDir(t, e)
	must(t, errors.Join(save(e.records.arrivalPath(id), arrivalRecord{EngineID: "own"}),
		save(e.records.recordPath(id), "resumed"), restoreDir.Admit(shim.Job{})))
	spec := fmt.Sprintf(`{"root":{"path":"x"},"linux":{"cgroupsPath":%q}}`, cgroupWithProcess(t))
	dir := filepath.Join(restoreDir.Path(), "bundle")
	must(t, errors.Join(os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "config.json"), []byte(spec), 0o600)))
	if err := e.Remove(t.Context(), id, false); !errors.Is(err, engine.ErrBusy) || len(b.did) > 0 {
		t.Errorf("%v, and the engine was told %q", err, b.did)
	}
	must(t, e.Remove(t.Context(), id, true))
	if hasRestoreDir(t, e, "") || durable.Exists(e.records.remembered(id)) ||
		!slices.Equal(b.did, []string{"remove"}) {
		t.Errorf("the restore directory is there: %v; it is known: %v; the engine was told %q",
			hasRestoreDir(t, e, ""), durable.Exists(e.records.remembered(id)), b.did)
	}
}

// cgroupWithProcess returns the name of a cgroup with a process.
func cgroupWithProcess(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	must(t, cmd.Start())
	name, dirs := emptyCgroup(t)
	for _, dir := range dirs {
		must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0))
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return name
}

// emptyCgroup makes a cgroup, and removes it at the end if it still exists.
func emptyCgroup(t *testing.T) (name string, dirs []string) {
	t.Helper()
	name = "/godwit-test-" + strings.ToLower(rand.Text())
	for _, root := range []string{"/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		dir := root + name
		must(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		})
		dirs = append(dirs, dir)
	}
	return name, dirs
}

// TestGroupLeft checks that the cgroup of a removed arrival goes, unless processes are in it.
func TestGroupLeft(t *testing.T) {
	e := awayEngine(t)
	adapt(e, &booted{})
	restoreDir := openRestoreDir(t, e)
	e.lookup.removeGroup("own") // there is no bundle
	bundle := filepath.Join(restoreDir.Path(), "bundle")
	must(t, os.MkdirAll(bundle, 0o700))
	empty, dirs := emptyCgroup(t)
	for _, group := range []string{"", empty, cgroupWithProcess(t), empty} { // finally it is gone
		spec := fmt.Sprintf(`{"root":{"path":"x"},"linux":{"cgroupsPath":%q}}`, group)
		must(t, os.WriteFile(filepath.Join(bundle, "config.json"), []byte(spec), 0o600))
		e.lookup.removeGroup("own")
	}
	for _, dir := range dirs {
		if durable.Exists(dir) {
			t.Errorf("%s is left", dir)
		}
	}
}

// TestGroupOfWhatHasLeft checks that the cgroup of a container that had arrived here goes with its restore
// directory when the container no longer exists.
func TestGroupOfWhatHasLeft(t *testing.T) {
	e, id := awayEngine(t), strings.Repeat("a", 64)
	adapt(e, &booted{})
	must(t, e.records.remember(id, "own"))
	restoreDir := openRestoreDir(t, e)
	must(t, os.MkdirAll(filepath.Join(restoreDir.Path(), "bundle"), 0o700))
	empty, dirs := emptyCgroup(t)
	spec := fmt.Sprintf(`{"root":{"path":"x"},"linux":{"cgroupsPath":%q}}`, empty)
	must(t, os.WriteFile(filepath.Join(restoreDir.Path(), "bundle", "config.json"), []byte(spec), 0o600))
	must(t, e.remains.removeRestoreDir(id))
	for _, path := range append(dirs, restoreDir.Path()) {
		if durable.Exists(path) {
			t.Errorf("%s is left", path)
		}
	}
}
