package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/network/foreign"
)

// TestEngineFirewall: the command allows a node's agent to keep rules, and forbids it again, without any
// engine. It does not create a missing state directory.
func TestEngineFirewall(t *testing.T) {
	state := t.TempDir()
	do := func(args ...string) (string, error) {
		root := newRootCommand()
		var said bytes.Buffer
		root.SetOut(&said)
		root.SetErr(&said)
		root.SetArgs(append([]string{"engine"}, args...))
		err := root.ExecuteContext(t.Context())
		return said.String(), err
	}
	for _, c := range []struct {
		what, says string
		allowed    bool
	}{{"setup", "will add rules", true}, {"remove", "will remove its rules", false}} {
		said, err := do(c.what, "--firewall", "--state", state)
		if err != nil || !strings.Contains(said, c.says) || foreign.RulesAllowed(state) != c.allowed {
			t.Errorf("%s: %v, it says %q", c.what, err, said)
		}
	}
	if _, err := do("setup", "--firewall", "--state", filepath.Join(state, "none")); err == nil ||
		!strings.Contains(err.Error(), "make the node first") {
		t.Errorf("without a node: %v", err)
	}
	if _, err := do("setup"); err == nil {
		t.Error("setup of nothing")
	}
}
