package docker

import (
	"testing"

	"github.com/moby/moby/api/types/container"
)

// TestForbidsLater: what is known of Docker's default profiles beforehand.
func TestForbidsLater(t *testing.T) {
	builtin := []string{"name=apparmor", "name=seccomp,profile=builtin"}
	for name, one := range map[string]struct {
		version string
		options []string
		add     []string
		want    bool
	}{
		"20.10":                  {"20.10.24+dfsg1", []string{"name=seccomp,profile=default"}, nil, true},
		"20.10 as later ones":    {"20.10.24", builtin, []string{"NET_ADMIN"}, true},
		"23":                     {"23.0.0", builtin, nil, false},
		"28":                     {"28.5.2+dfsg4", builtin, nil, false},
		"unknown":                {"dev", builtin, nil, false},
		"a capability":           {"20.10.24", builtin, []string{"CAP_SYS_PTRACE"}, false},
		"a capability, short":    {"20.10.24", builtin, []string{"sys_ptrace"}, false},
		"an administrator's":     {"20.10.24", []string{"name=seccomp,profile=/x.json"}, nil, false},
		"a kernel without":       {"20.10.24", []string{"name=apparmor"}, nil, false},
		"of a later unconfined":  {"23.0.0", []string{"name=seccomp,profile=unconfined"}, nil, false},
		"of an earlier, unknown": {"", nil, nil, false},
	} {
		h := &container.HostConfig{CapAdd: one.add}
		if got := forbidsLater(one.version, one.options, h); got != one.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
