package foreign

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
	"github.com/godwit/godwit/internal/network/nft"
)

// allowedName is a file in the state directory: if it exists, the administrator lets the agent keep rules in
// other programs' filters that let packets of containers pass.
const allowedName = "firewall-allowed"

// AllowRules lets the agent of a state directory keep rules for its pool in the chains that Docker and ufw
// provide for users' rules. The agent makes the rules again when these programs recreate their chains, as at
// a boot.
func AllowRules(stateDir string) error {
	return kernel.WriteFileAtomic(filepath.Join(stateDir, allowedName), nil, 0o600)
}

// ForbidRules makes the agent remove these rules.
func ForbidRules(stateDir string) error {
	err := kernel.RemoveDurable(filepath.Join(stateDir, allowedName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// RulesAllowed reports whether the agent may keep such rules.
func RulesAllowed(stateDir string) bool {
	_, err := os.Stat(filepath.Join(stateDir, allowedName))
	return err == nil
}

// UserChain is ufw's chain of its user's rules for forwarded packets.
const UserChain = "ufw-user-forward"

// allowedRules returns rules that let packets from and to containers pass. Their comment distinguishes them
// from an administrator's own rules.
func allowedRules(pool netip.Prefix) (rules []passRule) {
	for _, chain := range []string{PassChain, UserChain} {
		for _, end := range []string{"--source", "--destination"} {
			match := []string{end, pool.String(), "--match", "comment", "--comment", "godwit: containers"}
			rules = append(rules, passRule{"filter", chain, match, func(string) bool { return true }})
		}
	}
	return rules
}

// KeepAllowed makes missing rules that are allowed, and removes rules that are no longer allowed.
func (p *Passes) KeepAllowed() error {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	if !RulesAllowed(p.config.StateDir) {
		if p.forbidden {
			return nil
		}
		err := p.endRules(allowedRules(p.config.Pool))
		p.forbidden = err == nil
		return err
	}
	p.forbidden = false
	passes, err := p.poolPasses()
	if err != nil || passes {
		return err
	}
	for _, rule := range allowedRules(p.config.Pool) {
		err = errors.Join(err, p.makePassRule(rule))
	}
	return err
}

// poolPasses reports, without running other programs, whether the chains of Docker and ufw in nftables let
// the pool's packets pass. It does not know chains of the older iptables.
func (p *Passes) poolPasses() (bool, error) {
	conn, err := nft.Open(p.config.Namespace)
	if err != nil {
		return false, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return false, fmt.Errorf("list the chains of the packet filter: %w", err)
	}
	if !slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return c.Name == PassChain ||
			c.Name == UserChain
	}) {
		return false, nil
	}
	found, err := droppers(p.config.Path, p.config.Pool)
	return len(found) == 0, err
}

// RemoveAllowed removes the rules that KeepAllowed makes.
func (p *Passes) RemoveAllowed() error { return p.endRules(allowedRules(p.config.Pool)) }
