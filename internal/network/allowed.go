package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/nftables"

	"github.com/godwit/godwit/internal/kernel"
)

// allowedName is a file in the state directory: the administrator lets the agent keep rules in
// other programs' filters, by which packets of containers pass.
const allowedName = "firewall-allowed"

// AllowRules lets the agent of a state directory keep rules for its pool in the chains of Docker
// and ufw that are for rules of others. The agent makes them again when these programs make their
// chains anew, as at a boot.
func AllowRules(stateDir string) error {
	return kernel.WriteFileAtomic(filepath.Join(stateDir, allowedName), nil, 0o600)
}

// ForbidRules has the agent remove them.
func ForbidRules(stateDir string) error {
	err := kernel.RemoveDurable(filepath.Join(stateDir, allowedName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// RulesAllowed tells whether the agent may keep such rules.
func RulesAllowed(stateDir string) bool {
	_, err := os.Stat(filepath.Join(stateDir, allowedName))
	return err == nil
}

// userChain is where ufw has its user's rules for what is forwarded.
const userChain = "ufw-user-forward"

// allowedRules let what comes from containers and what goes to them pass. The comment tells them
// from an administrator's own.
func allowedRules(pool netip.Prefix) (rules []passRule) {
	for _, chain := range []string{passChain, userChain} {
		for _, end := range []string{"--source", "--destination"} {
			match := []string{end, pool.String(), "--match", "comment", "--comment", "godwit: containers"}
			rules = append(rules, passRule{"filter", chain, match, func(string) bool { return true }})
		}
	}
	return rules
}

// keepAllowed makes the rules that are allowed and missing, and removes them when they are no
// longer allowed. Only KeepPassing calls it.
func (n *Network) keepAllowed() error {
	if !RulesAllowed(n.config.StateDir) {
		if n.forbidden {
			return nil
		}
		err := n.endRules(allowedRules(n.config.Pool))
		n.forbidden = err == nil
		return err
	}
	n.forbidden = false
	passes, err := n.poolPasses()
	if err != nil || passes {
		return err
	}
	for _, rule := range allowedRules(n.config.Pool) {
		err = errors.Join(err, n.makePassRule(rule))
	}
	return err
}

// poolPasses tells without any other program whether the chains of Docker and ufw that nftables
// knows let the pool's packets pass. Those of an older iptables it does not know.
func (n *Network) poolPasses() (bool, error) {
	conn, err := n.filter()
	if err != nil {
		return false, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return false, fmt.Errorf("list the chains of the packet filter: %w", err)
	}
	if !slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Name == passChain || c.Name == userChain }) {
		return false, nil
	}
	found, err := droppers(n.config.Namespace, n.config.Pool)
	return len(found) == 0, err
}
