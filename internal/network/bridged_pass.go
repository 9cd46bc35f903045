package network

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// passRule is a rule of ours in a chain of others, without which they would drop what is to pass.
type passRule struct {
	table, chain string
	match        []string
	needed       func(rules string) bool // by what is in the chain; that there is none is no need
}

// passRules: Docker keeps a chain for others, which is asked before its own (passChain). And since 28 it drops what comes for a container from
// elsewhere than its bridge before anybody is asked: there comes what out of the tunnel or out of a hold goes to a container, of which the
// other chain decides later. Docker appends these rules, so one that stands before them stays there.
func passRules() []passRule {
	mark := strconv.Itoa(passMark)
	rules := []passRule{{"filter", passChain, []string{"--match", "mark", "--mark", mark + "/" + mark}, func(string) bool { return true }}}
	for _, number := range []uint32{groupTunnel, groupHold} {
		rules = append(rules, passRule{"raw", "PREROUTING", []string{"--match", "devgroup", "--src-group", fmt.Sprintf("%#x", number)},
			func(rules string) bool { return strings.Contains(rules, "-j DROP") }})
	}
	return rules
}

// letPass makes the rules that are needed and not there.
func (n *Network) letPass() error {
	var failed error
	for _, rule := range passRules() {
		failed = errors.Join(failed, n.makePassRule(rule))
	}
	return failed
}

func (n *Network) makePassRule(rule passRule) error {
	if _, err := n.iptables("--check", rule); err == nil {
		return nil
	}
	rules, there, err := n.listChain(rule)
	if err != nil || !there || !rule.needed(rules) {
		return err
	}
	if out, err := n.iptables("--insert", rule); err != nil {
		return fmt.Errorf("let packets of containers that have moved pass Docker's filter: %w: %s", err, out)
	}
	return nil
}

// KeepPassing does letPass again while there is something to forward: others make their chains anew, Docker when its node starts. And it
// does what could not be done when a container had moved.
func (n *Network) KeepPassing() error {
	n.mu.Lock()
	err := n.settleBridged()
	n.sendElsewhere()
	n.mu.Unlock()
	if !n.passes() {
		return err
	}
	err = errors.Join(err, n.letPass())
	if !n.passes() { // it has ended meanwhile
		err = errors.Join(err, n.endPass())
	}
	return err
}

// passes tells whether there is something to forward for containers on bridges.
func (n *Network) passes() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.bridged)+len(n.segments) > 0
}

// endPass undoes letPass. Doing nothing is success.
func (n *Network) endPass() error {
	var failed error
	for _, rule := range passRules() {
		if _, err := n.iptables("--check", rule); err != nil { // also where there is no such program
			continue
		}
		if out, err := n.iptables("--delete", rule); err != nil {
			failed = errors.Join(failed, fmt.Errorf("remove the rule in chain %s: %w: %s", rule.chain, err, out))
		}
	}
	return failed
}

// iptables adds, removes or looks for a rule, with the program by which Docker makes its own.
func (n *Network) iptables(do string, rule passRule) (string, error) {
	args := slices.Concat([]string{"--wait", "5", "--table", rule.table, do, rule.chain}, rule.match, []string{"--jump", "ACCEPT"})
	var out []byte
	err := within(n.ns, func() (err error) {
		out, err = exec.Command("iptables", args...).CombinedOutput()
		return err
	})
	return strings.TrimSpace(string(out)), err
}

// listChain is what is in the chain of a rule.
func (n *Network) listChain(rule passRule) (rules string, there bool, err error) {
	err = within(n.ns, func() error {
		out, err := exec.Command("iptables", "--wait", "5", "--table", rule.table, "--list-rules", rule.chain).Output()
		there, rules = err == nil, string(out)
		var failed *exec.ExitError
		if errors.As(err, &failed) || errors.Is(err, exec.ErrNotFound) {
			return nil
		}
		return err
	})
	return rules, there, err
}
