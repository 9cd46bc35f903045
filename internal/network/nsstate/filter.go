package nsstate

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ownTable is the name of Godwit's own table in a container's namespace.
const ownTable = "godwit"

// Docker's resolver is at this address in the containers of its networks; rules in these chains
// lead there (moby, daemon/libnetwork/resolver_unix.go). Docker makes them at the target, too.
var (
	resolver       = []byte{127, 0, 0, 11}
	resolverChains = []string{"DOCKER_OUTPUT", "DOCKER_POSTROUTING"}
)

// families are the names that nft has for them.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev",
	nftables.TableFamilyBridge: "bridge",
}

// builtin are tables and chains that iptables-nft makes when it lists rules.
var (
	builtinTables = []string{"filter", "nat", "mangle", "raw", "security"}
	builtinChains = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
)

// tables finds the tables of nftables, which are those of iptables-nft, too.
func tables(ns netns.NsHandle) ([]Finding, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return nil, err
	}
	all, err := conn.ListTables()
	if withoutTables(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, table := range all {
		if own := families[table.Family]; table.Name == ownTable && (own == "inet" || own == "arp") {
			continue
		}
		of := slices.DeleteFunc(slices.Clone(chains), func(c *nftables.Chain) bool {
			return c.Table.Name != table.Name || c.Table.Family != table.Family
		})
		engines, err := madeByEngine(conn, table, of)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", table.Name, err)
		}
		if !engines {
			name := fmt.Sprintf("nftables table %s %.80s", families[table.Family], table.Name)
			found = append(found, made(filterRules, name))
		}
	}
	return found, nil
}

const filterRules = "rules of the packet filter"

// withoutTables tells of an error that the kernel has no nf_tables.
func withoutTables(err error) bool {
	for _, none := range []error{unix.EINVAL, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP} {
		if errors.Is(err, none) {
			return true
		}
	}
	return false
}

// madeByEngine tells whether a table is one of iptables-nft in which nobody but Docker's resolver
// has rules.
func madeByEngine(conn *nftables.Conn, table *nftables.Table, chains []*nftables.Chain) (bool, error) {
	family := families[table.Family]
	if family != "ip" && family != "ip6" || !slices.Contains(builtinTables, table.Name) {
		return false, nil
	}
	for _, chain := range chains {
		resolves := table.Name == "nat" && slices.Contains(resolverChains, chain.Name)
		accepts := chain.Policy == nil || *chain.Policy == nftables.ChainPolicyAccept
		if !resolves && (!slices.Contains(builtinChains, chain.Name) || !accepts) {
			return false, nil
		}
		rules, err := conn.GetRules(table, chain)
		if err != nil {
			return false, err
		}
		for _, rule := range rules {
			if table.Name != "nat" || !isResolvers(rule.Exprs, resolves) {
				return false, nil
			}
		}
	}
	return true, nil
}

// isResolvers tells whether a rule is one of Docker's resolver: for its address, and, in a chain of
// others, a jump to one of its chains.
func isResolvers(rule []expr.Any, own bool) bool {
	address, jumps := false, false
	for _, part := range rule {
		switch part := part.(type) {
		case *expr.Cmp:
			address = address || part.Op == expr.CmpOpEq && bytes.Equal(part.Data, resolver)
		case *expr.Verdict:
			jumps = part.Kind == expr.VerdictJump && slices.Contains(resolverChains, part.Chain)
		}
	}
	return address && (own || jumps)
}
