package network

import (
	"os"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/network/foreign"
)

// TestAllowedRules checks that the agent, once allowed, lets packets of containers pass the filters of
// Docker and ufw; that it adds its rules again after these programs have recreated their chains; and that
// it removes exactly its own rules when they are forbidden again.
func TestAllowedRules(t *testing.T) {
	for _, chain := range []string{foreign.PassChain, foreign.UserChain} {
		t.Run(chain, func(t *testing.T) {
			s := newSite(t)
			n := s.nodes["a"]
			begin := func() {
				s.must("a", "iptables", "-N", chain)
				s.must("a", "iptables", "-P", "FORWARD", "DROP")
				s.must("a", "iptables", "-A", "FORWARD", "-j", chain)
			}
			end := func() {
				s.must("a", "iptables", "-F")
				s.must("a", "iptables", "-X")
			}
			passes := func(want bool) {
				t.Helper()
				must(t, n.KeepPassing())
				if list, err := n.Obstacles(); err != nil || (len(list) == 0) != want {
					t.Errorf("obstacles: %q, %v", list, err)
				}
			}
			begin()
			passes(false)
			must(t, foreign.AllowRules(n.config.StateDir))
			passes(true)
			passes(true)
			if out, err := s.run("a", "iptables", "-S", chain); err != nil ||
				strings.Count(out, "ACCEPT") != 2 {
				t.Errorf("there is\n%s", out)
			}
			end()
			begin() // as after a reload or a boot
			passes(true)
			s.must("a", "iptables", "-I", chain, "-s", "10.88.0.0/16", "-j", "ACCEPT") // the administrator's
			must(t, foreign.ForbidRules(n.config.StateDir))
			must(t, foreign.ForbidRules(n.config.StateDir))
			passes(false)
			if out, err := s.run("a", "iptables", "-S", chain); err != nil ||
				strings.Count(out, "ACCEPT") != 1 || strings.Contains(out, "godwit") {
				t.Errorf("left is\n%s", out)
			}
			end()
			s.must("a", "iptables", "-P", "FORWARD", "ACCEPT")
			must(t, foreign.AllowRules(n.config.StateDir))
			must(t, n.KeepPassing()) // there is no chain to put a rule into
		})
	}
}

// TestRuleNotLookedFor checks that a rule counts as missing if iptables says so, and not if iptables could
// not look.
func TestRuleNotLookedFor(t *testing.T) {
	s := newSite(t)
	n := s.nodes["a"]
	s.must("a", "iptables", "-N", foreign.UserChain)
	s.must("a", "iptables", "-P", "FORWARD", "DROP")
	s.must("a", "iptables", "-A", "FORWARD", "-j", foreign.UserChain)
	must(t, foreign.AllowRules(n.config.StateDir))
	must(t, n.KeepPassing())
	must(t, foreign.ForbidRules(n.config.StateDir))
	t.Run("locked", func(t *testing.T) {
		busy := t.TempDir()
		must(t, os.WriteFile(busy+"/iptables", []byte("#!/bin/sh\nexit 4\n"), 0o700))
		t.Setenv("PATH", busy+":"+os.Getenv("PATH"))
		if err := n.KeepPassing(); err == nil || !strings.Contains(err.Error(), foreign.UserChain) {
			t.Errorf("rules that could not be looked for count as removed: %v", err)
		}
	})
	must(t, n.KeepPassing())
	if out, err := s.run("a", "iptables", "-S", foreign.UserChain); err != nil ||
		strings.Contains(out, "godwit") {
		t.Errorf("left is\n%s", out)
	}
}
