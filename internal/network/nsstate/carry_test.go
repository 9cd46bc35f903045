package nsstate

import (
	"errors"
	"maps"
	"testing"
)

// TestCarry applies the changed settings of one namespace to another.
func TestCarry(t *testing.T) {
	from, to := newSpace(t), newSpace(t)
	from.run("echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range",
		"echo 321 > /proc/sys/net/core/somaxconn",
		"echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
		"echo 1 > /proc/sys/net/ipv4/conf/all/src_valid_mark",
		"echo 2000 > /proc/sys/net/ipv4/ip_unprivileged_port_start")
	usual, err := NewFresh()
	if err != nil {
		t.Fatal(err)
	}
	settings, err := usual.Changed(from.path)
	if err != nil || len(settings) < 5 {
		t.Fatalf("%v, %v", settings, err)
	}
	if err := Apply(to.path, settings); err != nil {
		t.Fatal(err)
	}
	now, err := usual.Changed(to.path)
	if err != nil || !maps.Equal(now, settings) {
		t.Errorf("%v, want %v: %v", now, settings, err)
	}
	if err := Apply(to.path, map[string]string{"ipv4/no_such_setting": "1"}); err == nil {
		t.Error("a setting that the kernel does not have was given")
	}
}

// TestCheck checks that a map with any invalid setting is refused as a whole.
func TestCheck(t *testing.T) {
	for name, value := range map[string]string{
		"../kernel/core_pattern": "x", "ipv4": "1", "/ipv4/ip_forward": "1", "ipv4/./ip_forward": "1",
		"ipv4/conf/eth0/rp_filter": "1", "ipv4/conf/default/rp_filter": "1",
		"netfilter/nf_conntrack_max": "1",
		"ipv4/ip_forward":            "1\n2",
	} {
		if err := Check(map[string]string{name: value}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s = %q: %v", name, value, err)
		}
	}
}
