package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// opened opens a state on a machine with an id, and closes it again.
func opened(t *testing.T, state, run, machine string) *Dir {
	t.Helper()
	d := &Dir{}
	for _, dir := range []string{state, run} {
		if err := d.take(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.identify(state, run, machine); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return d
}

func machineFile(t *testing.T, id string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "machine-id")
	if err := os.WriteFile(path, []byte(id+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestIncarnation goes through the possible changes of a state.
func TestIncarnation(t *testing.T) {
	one, other := machineFile(t, "0123"), machineFile(t, "4567")
	state, run := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "run")
	path := filepath.Join(state, incarnationName)
	first := opened(t, state, run, one)
	if first.Renewed == "" || first.Incarnation == "" {
		t.Fatalf("a new state: %+v", first)
	}
	if strings.Contains(first.Incarnation, "0123") {
		t.Errorf("the machine's id is in %s", first.Incarnation)
	}
	same := func(what string, d *Dir) {
		t.Helper()
		if d.Incarnation != first.Incarnation || d.Renewed != "" {
			t.Errorf("%s: %+v, want %s", what, d, first.Incarnation)
		}
	}
	same("opened again", opened(t, state, run, one))
	same("after a boot", opened(t, state, t.TempDir(), one))
	backup, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	boot := t.TempDir()
	same("opened again", opened(t, state, boot, one))
	if err := os.WriteFile(filepath.Join(boot, openingName), []byte(field(t, backup, "opening")),
		0o600); err != nil {
		t.Fatal(err)
	}
	same("killed before the run directory knew", opened(t, state, boot, one))
	same("opened again", opened(t, state, boot, one))
	same("opened again", opened(t, state, boot, one))

	renewed := func(what, why string, d *Dir) {
		t.Helper()
		if d.Incarnation == first.Incarnation || !strings.Contains(d.Renewed, why) {
			t.Errorf("%s: %+v, want another than %s because %s", what, d, first.Incarnation, why)
		}
	}
	for what, change := range map[string][]byte{"put back": backup, "none yet": nil,
		"damaged": []byte("{}")} {
		if err := os.WriteFile(path, change, 0o600); err != nil {
			t.Fatal(err)
		}
		renewed(what, what, opened(t, state, boot, one))
	}
	if err := os.WriteFile(path, backup, 0o600); err != nil {
		t.Fatal(err)
	}
	renewed("copied", "another machine", opened(t, state, t.TempDir(), other))
}

func field(t *testing.T, text []byte, name string) string {
	t.Helper()
	var all map[string]string
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all[name]
}

// TestNoMachineID: a machine without an id has states, too.
func TestNoMachineID(t *testing.T) {
	state, run, none := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "none")
	if a, b := opened(t, state, run, none), opened(t, state, run, none); a.Incarnation != b.Incarnation {
		t.Errorf("%s, then %s", a.Incarnation, b.Incarnation)
	}
}

// TestSecondIsRefused: a second agent changes nothing in either directory, and learns who was first; when
// the first has ended, the second gets them, although a child of the first lives on.
func TestSecondIsRefused(t *testing.T) {
	patience = pollEvery
	state, run := t.TempDir(), t.TempDir()
	first, err := Open(state, run)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	before := content(t, state) + content(t, run)
	for _, dirs := range [][2]string{{state, run}, {state, t.TempDir()}, {t.TempDir(), run}} {
		_, err = Open(dirs[0], dirs[1])
		if !errors.Is(err, ErrLocked) ||
			!strings.Contains(err.Error(), fmt.Sprintf("process %d since 2", os.Getpid())) {
			t.Errorf("a second one: %v", err)
		}
	}
	if _, err := Lock(state); !errors.Is(err, ErrLocked) {
		t.Errorf("a command: %v", err)
	}
	if after := content(t, state) + content(t, run); after != before {
		t.Errorf("it changed something:\n%s\nbefore:\n%s", after, before)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Open(state, run)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s: %s\n", entry.Name(), text)
	}
	return all.String()
}

// FuzzFiles: the files of a state may contain anything.
func FuzzFiles(f *testing.F) {
	const id = "0123456789abcdef"
	f.Add([]byte(`{"pid":17,"since":"2026-01-02T03:04:05Z"}`), "")
	f.Add([]byte(`{"id":"`+id+`","machine":"01","opening":"`+id+`","before":""}`), id)
	f.Fuzz(func(t *testing.T, text []byte, seen string) {
		if describeHolder(text) == "" {
			t.Error("nobody has the lock")
		}
		if next, _ := decide(text, seen, "01", randomHex); !next.valid() {
			t.Errorf("%+v", next)
		}
	})
}

// TestUnfinishedRecordsGo: records that a killed agent was writing are removed, and no files of containers.
func TestUnfinishedRecordsGo(t *testing.T) {
	state := t.TempDir()
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf(".x.new-%d-7", ended.Process.Pid)
	goes := []string{".", "proofs", "containers/id", "engines/docker/id", "images/sha256/id"}
	stays := []string{"volumes/data", "containers/id/upper", "layers/id/diff"}
	for _, dir := range append(slices.Clone(goes), stays...) {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(state, dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	opened, err := Open(state, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	for _, dir := range append(slices.Clone(goes), stays...) {
		_, err := os.Stat(filepath.Join(state, dir, name))
		if (err == nil) != slices.Contains(stays, dir) {
			t.Errorf("in %s: %v", dir, err)
		}
	}
}
