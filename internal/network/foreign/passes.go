package foreign

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netns"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
)

// PassChain is the chain that Docker asks for other programs' rules before its own.
const PassChain = "DOCKER-USER"

// passRule is a rule of ours in another program's chain, which would otherwise drop packets that must pass.
type passRule struct {
	table, chain string
	match        []string
	needed       func(rules string) bool // given the chain's contents; a missing chain needs no rule
}

// passRules returns the rules that must be in chains of Docker. Docker consults a chain for other programs'
// rules before its own (PassChain). Since Docker 28, another chain comes first, and drops packets to a
// container that do not come from the container's bridge. So packets from the tunnel and from holds get a
// rule there, too; PassChain then decides about them. Docker appends its rules to that chain, so a rule
// before them stays there.
func passRules() []passRule {
	mark := strconv.Itoa(pool.PassMark)
	rules := []passRule{{"filter", PassChain, []string{"--match", "mark", "--mark", mark + "/" + mark},
		func(string) bool { return true }}}
	for _, number := range []uint32{pool.GroupTunnel, pool.GroupHold} {
		rules = append(rules, passRule{"raw", "PREROUTING",
			[]string{"--match", "devgroup", "--src-group", fmt.Sprintf("%#x", number)},
			func(rules string) bool { return strings.Contains(rules, "-j DROP") }})
	}
	return rules
}

// PassesConfig of Passes.
type PassesConfig struct {
	Namespace netns.NsHandle // of the node
	Path      string         // of the same namespace; the calling thread's if empty
	Pool      netip.Prefix
	StateDir  string // has the administrator's permission: see AllowRules
}

// Passes are the rules in other programs' chains on a node.
type Passes struct {
	config PassesConfig

	keeping   sync.Mutex
	forbidden bool // none of allowedRules is in place: see KeepAllowed
}

// NewPasses makes no rules yet.
func NewPasses(config PassesConfig) *Passes { return &Passes{config: config} }

// Make adds missing rules that are needed.
func (p *Passes) Make() error {
	var failed error
	for _, rule := range passRules() {
		failed = errors.Join(failed, p.makePassRule(rule))
	}
	return failed
}

func (p *Passes) makePassRule(rule passRule) error {
	if is, err := p.ruleThere(rule); err != nil || is {
		return err
	}
	rules, there, err := p.listChain(rule)
	if err != nil || !there || !rule.needed(rules) {
		return err
	}
	if out, err := p.iptables("--insert", rule); err != nil {
		return fmt.Errorf("let packets of containers pass chain %s: %w: %s", rule.chain, err, out)
	}
	return nil
}

// Remove undoes Make. It is idempotent.
func (p *Passes) Remove() error { return p.endRules(passRules()) }

func (p *Passes) endRules(rules []passRule) error {
	var failed error
	for _, rule := range rules {
		there, err := p.ruleThere(rule)
		if err != nil || !there {
			failed = errors.Join(failed, err)
			continue
		}
		if out, err := p.iptables("--delete", rule); err != nil {
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
func (p *Passes) ruleThere(rule passRule) (bool, error) {
	out, err := p.iptables("--check", rule)
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
func (p *Passes) iptables(do string, rule passRule) (string, error) {
	args := slices.Concat([]string{"--wait", "5", "--table", rule.table, do, rule.chain}, rule.match,
		[]string{"--jump", "ACCEPT"})
	var out []byte
	err := namespace.Within(p.config.Namespace, func() (err error) {
		out, err = exec.Command("iptables", args...).CombinedOutput()
		return err
	})
	return strings.TrimSpace(string(out)), err
}

// listChain returns the contents of a rule's chain.
func (p *Passes) listChain(rule passRule) (rules string, there bool, err error) {
	err = namespace.Within(p.config.Namespace, func() error {
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
