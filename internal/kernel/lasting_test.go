package kernel

import (
	"testing"
)

func TestIsAgentUnit(t *testing.T) {
	for own, want := range map[string]bool{
		"0::/godwit.slice/godwit-agent.service\n":       true,
		"0::/system.slice/godwit-agent.service\n":       true,
		"0::/user.slice/user-0.slice/session-1.scope\n": false,
		"0::/\n": false,
		"":       false,
		"1:name=systemd:/system.slice/godwit-agent.service\n":                   false,
		"4:memory:/\n0::/godwit.slice/godwit-agent.service\n":                   false,
		"0::/godwit.slice/godwit-agent.service\n4:memory:/godwit-agent.service": false,
	} {
		if got := isAgentUnit(own); got != want {
			t.Errorf("%q: %t", own, got)
		}
	}
}
