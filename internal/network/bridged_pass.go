package network

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// passRule is a rule of ours in another program's chain, which would otherwise drop packets that must pass.
type passRule struct {
	table, chain string
	match        []string
	needed       func(rules string) bool // given the chain's contents; a missing chain needs no rule
}

// passRules returns the rules that must be in chains of Docker. Docker consults a chain for other programs'
// rules before its own (passChain). Since Docker 28, another chain comes first, and drops packets to a
// container that do not come from the container's bridge. So packets from the tunnel and from holds get a
// rule there, too; passChain then decides about them. Docker appends its rules to that chain, so a rule
// before them stays there.
func passRules() []passRule {
	mark := strconv.Itoa(passMark)
	rules := []passRule{{"filter", passChain, []string{"--match", "mark", "--mark", mark + "/" + mark},
		func(string) bool { return true }}}
	for _, number := range []uint32{groupTunnel, groupHold} {
		rules = append(rules, passRule{"raw", "PREROUTING",
			[]string{"--match", "devgroup", "--src-group", fmt.Sprintf("%#x", number)},
			func(rules string) bool { return strings.Contains(rules, "-j DROP") }})
	}
	return rules
}

// letPass adds missing rules that are needed.
func (n *Network) letPass() error {
	var failed error
	for _, rule := range passRules() {
		failed = errors.Join(failed, n.makePassRule(rule))
	}
	return failed
}

func (n *Network) makePassRule(rule passRule) error {
	if is, err := n.ruleThere(rule); err != nil || is {
		return err
	}
	rules, there, err := n.listChain(rule)
	if err != nil || !there || !rule.needed(rules) {
		return err
	}
	if out, err := n.iptables("--insert", rule); err != nil {
		return fmt.Errorf("let packets of containers pass chain %s: %w: %s", rule.chain, err, out)
	}
	return nil
}

// KeepPassing keeps the rules that the administrator has allowed (AllowRules). While there is something to
// forward, it also repeats letPass, because other programs recreate their chains, as Docker does when it
// starts. And it retries work that failed when a container had moved.
func (n *Network) KeepPassing() error {
	n.mu.Lock()
	err := n.finaliseBridged()
	n.sendElsewhere()
	n.mu.Unlock()
	err = errors.Join(err, n.keepAllowed())
	if !n.passes() {
		return err
	}
	err = errors.Join(err, n.letPass())
	if !n.passes() { // nothing is left to forward
		err = errors.Join(err, n.endPass())
	}
	return err
}

// passes reports whether there is something to forward for containers on bridges.
func (n *Network) passes() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.bridged)+len(n.routed) > 0
}

// endPass undoes letPass. It is idempotent.
func (n *Network) endPass() error { return n.endRules(passRules()) }

func (n *Network) endRules(rules []passRule) error {
	var failed error
	for _, rule := range rules {
		there, err := n.ruleThere(rule)
		if err != nil || !there {
			failed = errors.Join(failed, err)
			continue
		}
		if out, err := n.iptables("--delete", rule); err != nil {
			failed = errors.Join(failed,
				fmt.Errorf("remove the rule in chain %s: %w: %s", rule.chain, err, out))
		}
	}
	return failed
}

// Exit codes of iptables for a missing rule: no such rule, or no such table in the kernel. Other codes mean
// that iptables could not look, for example because another program held its lock for too long (libxtables,
// enum xtables_exittype).
const (
	exitNoRule  = 1
	exitNoTable = 3
)

// ruleThere reports whether a rule is in its chain. A node without iptables has none of our rules.
func (n *Network) ruleThere(rule passRule) (bool, error) {
	out, err := n.iptables("--check", rule)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, exec.ErrNotFound):
		return false, nil
	case errors.As(err, &exit) && (exit.ExitCode() == exitNoRule || exit.ExitCode() == exitNoTable):
		return false, nil
	}
	return false, fmt.Errorf("look for the rule in chain %s: %w: %s", rule.chain, err, out)
}

// iptables adds, removes or checks a rule. It runs iptables, because Docker uses that, too.
func (n *Network) iptables(do string, rule passRule) (string, error) {
	args := slices.Concat([]string{"--wait", "5", "--table", rule.table, do, rule.chain}, rule.match,
		[]string{"--jump", "ACCEPT"})
	var out []byte
	err := within(n.ns, func() (err error) {
		out, err = exec.Command("iptables", args...).CombinedOutput()
		return err
	})
	return strings.TrimSpace(string(out)), err
}

// listChain returns the contents of a rule's chain.
func (n *Network) listChain(rule passRule) (rules string, there bool, err error) {
	err = within(n.ns, func() error {
		out, err := exec.Command("iptables", "--wait", "5", "--table", rule.table, "--list-rules",
			rule.chain).Output()
		there, rules = err == nil, string(out)
		var failed *exec.ExitError
		if errors.As(err, &failed) || errors.Is(err, exec.ErrNotFound) {
			return nil
		}
		return err
	})
	return rules, there, err
}
