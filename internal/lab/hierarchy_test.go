package lab

import (
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/kernel"
)

// TestHierarchies: mounts that a killed CRIU left do not count as the machine's.
func TestHierarchies(t *testing.T) {
	left := kernel.Mount{Type: "cgroup", Root: "/", Point: "/tmp/.criu.cgyard.x/freezer",
		Options: "rw,freezer"}
	named := kernel.Mount{Type: "cgroup", Root: "/", Point: "/tmp/.criu.cgyard.x/zdtm",
		Options: "rw,name=zdtm"}
	usual := kernel.Mount{Type: "cgroup", Root: "/", Point: "/sys/fs/cgroup/freezer", Options: "rw,freezer"}
	bound := kernel.Mount{Type: "cgroup", Root: "/web", Point: "/sys/fs/cgroup/bound", Options: "rw,pids"}
	for _, one := range []struct {
		mounts []kernel.Mount
		want   []string
	}{
		{[]kernel.Mount{left, named, usual, bound}, []string{usual.Point}},
		{[]kernel.Mount{left, bound}, []string{left.Point}},
		{[]kernel.Mount{bound}, nil},
	} {
		var points []string
		for _, h := range hierarchiesAmong(one.mounts) {
			points = append(points, h.Mount)
		}
		if !slices.Equal(points, one.want) {
			t.Errorf("among %+v are %v, want %v", one.mounts, points, one.want)
		}
	}
}
