package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// TestExternalDescriptors reads the states of runc and crun.
func TestExternalDescriptors(t *testing.T) {
	want := []string{"/dev/null", "pipe:[1]", "pipe:[2]"}
	for _, state := range []string{
		`{"id": "x", "external_descriptors": ["/dev/null", "pipe:[1]", "pipe:[2]"]}`,
		`{"pid": 7, "external_descriptors": "[\"/dev/null\",\"pipe:[1]\",\"pipe:[2]\"]"}`,
	} {
		if got, err := externalDescriptors([]byte(state)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", state, got, err)
		}
	}
	for _, state := range []string{"", `{"external_descriptors": "nonsense"}`, `{"external_descriptors": 3}`,
		`{"external_descriptors": {}}`} {
		if got, err := externalDescriptors([]byte(state)); err == nil {
			t.Errorf("%q: %q", state, got)
		}
	}
	if got, err := externalDescriptors([]byte(`{}`)); err != nil || got != nil {
		t.Errorf("none: %q, %v", got, err)
	}
}

// mute is the adapter of an engine that is there and hangs. Querying it fails the test.
type mute struct {
	away
	t *testing.T
}

func (mute) Away() error { return nil }

func (m mute) Find(context.Context, string) (Container, error) {
	m.t.Error("the engine is asked")
	return Container{}, context.DeadlineExceeded
}

// grouped starts a process with a cgroup of its own, which can be frozen.
func grouped(t *testing.T) checkpoint.Identity {
	t.Helper()
	above := "/sys/fs/cgroup/freezer"
	if _, err := os.Stat(above); err != nil {
		above = "/sys/fs/cgroup"
	}
	group, err := os.MkdirTemp(above, "godwit-oci-test-")
	must(t, err)
	cmd := exec.Command("cat")
	input, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		if err := errors.Join(input.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
		for unix.Rmdir(group) == unix.EBUSY { // the process has ended, but may not be gone yet
			time.Sleep(time.Millisecond)
		}
	})
	must(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0))
	first, err := checkpoint.Identify(cmd.Process.Pid)
	must(t, err)
	return first
}

// TestProcessesOfCopy checks that the processes of a leaving container are found without its engine, which
// may hang.
func TestProcessesOfCopy(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, mute{t: t})
	must(t, err)
	first := grouped(t)
	id := strings.Repeat("a", 64)
	must(t, save(e.records.departurePath(id), departureRecord{First: first}))
	if pids, err := e.Processes(t.Context(), id); err != nil || !slices.Contains(pids, first.PID) {
		t.Errorf("%d, %v lacks %d", pids, err, first.PID)
	}
}
