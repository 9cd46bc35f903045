package lxc

import (
	"slices"
	"testing"
)

// TestBases: LXC makes its groups within those of the first process.
func TestBases(t *testing.T) {
	for _, c := range []struct {
		groups string
		want   []string
	}{
		{"0::/\n", nil},
		{"0::/init.scope\n", nil},
		{"9:name=systemd:/init.scope\n8:pids:/\n0::/init.scope\n", nil},
		{"6:freezer:/\n0::/init\n", []string{"/init"}},
		{"6:freezer:/docker/0123\n5:cpu,cpuacct:/docker/0123\n0::/docker/0123/init.scope\n",
			[]string{"/docker/0123"}},
		{"0::/../../outside\n", nil},
		{"", nil}, {"garbage\n0:\n", nil},
	} {
		if found := basesIn(c.groups); !slices.Equal(found, c.want) {
			t.Errorf("in %q: %q, want %q", c.groups, found, c.want)
		}
	}
}
