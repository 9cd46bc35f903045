package e2e

import "testing"

// TestStatesSurvive: each of these workloads checks itself; its source describes the state that it sets up.
func TestStatesSurvive(t *testing.T) {
	for _, one := range []struct {
		name   string
		flags  []string
		finish bool // it has a command for state that can be used only once
	}{
		{name: "tree", finish: true},
		{name: "threads", finish: true},
		{name: "registers"},
		{name: "signals"},
		{name: "timers"},
		{name: "sleepers", finish: true},
		{name: "clock"},
		{name: "pipes", finish: true},
		{name: "unix"},
		{name: "events"},
		{name: "locks", flags: []string{"-v", "locks:/data"}},
		{name: "locks-waiting", finish: true},
		{name: "files-open", flags: []string{"-v", "open:/data"}},
		{name: "files-deleted"},
		{name: "memory"},
		{name: "ipc", finish: true},
		{name: "security", flags: []string{"-e", "ADDED=by the test"}},
		{name: "confined"},
		{name: "local-tcp", finish: true},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			c := state(t, one.flags, one.name)
			c.survives()
			if one.finish {
				c.ok("finish")
			}
		})
	}
}
