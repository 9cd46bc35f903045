package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

func testMachine(t *testing.T) Machine {
	t.Helper()
	return Machine{Name: "b", StateDir: t.TempDir(), RunDir: t.TempDir()}
}

func bind(directory string) engine.Volume {
	return engine.Volume{Kind: engine.Bind, Source: directory, Path: "/x"}
}

// TestArrivingDirectories: a container that another node describes gets no directory of the
// machine's, whether something is moved there or not.
func TestArrivingDirectories(t *testing.T) {
	m := testMachine(t)
	data := filepath.Join(t.TempDir(), "data")
	link := data + "-link"
	if err := errors.Join(os.Mkdir(data, 0o755), os.Symlink("/etc", link)); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		source          string
		readOnly, stays bool
		refused         bool
	}{
		{data, false, true, false},
		{data, true, true, false},
		{data, false, false, false},
		{"/srv/none", false, true, false},
		{"/home/ann/data", false, true, false},
		{"/etc/resolv.conf", true, true, false},
		{"/usr/share/zoneinfo", true, true, false},
		{"/etc/resolv.conf", false, true, true},
		{"/usr/share/zoneinfo", false, true, true},
		{"/etc", true, true, true},
		{"/etc", false, false, true},
		{link, true, true, true},
		{"/", true, true, true},
		{"/dev", false, true, true},
		{"/proc/sys", false, true, true},
		{"/sys/fs/cgroup", true, true, true},
		{"/var/run/docker.sock", true, true, true},
		{"/var/lib/docker/volumes", false, true, true},
		{filepath.Join(m.StateDir, "x"), true, true, true},
		{filepath.Dir(m.StateDir), true, true, true},
	} {
		v := bind(one.source)
		v.ReadOnly, v.Stays = one.readOnly, one.stays
		found := m.ExamineArriving(engine.Definition{Volumes: []engine.Volume{v}})
		if len(found) > 0 != one.refused {
			t.Errorf("%+v: %+v", one, found)
		}
	}
}

// TestPartsOfTheMachine: nothing that belongs to a machine is moved away from it.
func TestPartsOfTheMachine(t *testing.T) {
	m := testMachine(t)
	for path, want := range map[string]bool{"/etc/x": true, "/": true, "/usr": true, "/home": true,
		"/home/ann": false, "/srv/data": false, "/var": true, filepath.Dir(m.StateDir): true,
		m.RunDir: true, "/etcetera": false} {
		if got := m.owns(path); got != want {
			t.Errorf("%s is a part of the machine: %v", path, got)
		}
	}
}

func TestMountsBelow(t *testing.T) {
	found, err := mountsBelow("/")
	if err != nil || !slices.Contains(found, "/proc") || slices.Contains(found, "/") {
		t.Errorf("%q, %v; want /proc among them, and not / itself", found, err)
	}
	if found, err := mountsBelow(t.TempDir()); err != nil || len(found) > 0 {
		t.Errorf("in an empty directory: %q, %v", found, err)
	}
}
