package nsstate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Godwit's own tables in a namespace drop all packets of an arriving container, except those that CRIU marks
// (internal/network, block.go).
const (
	ownTable = "godwit"
	criuMark = 0xc114
)

var ownChains = []string{"arriving", "leaving"}

// Docker's resolver is at this address in the containers of its networks; rules in these chains
// lead there: those of iptables, or of a table of its own where Docker's firewall backend is nftables
// (moby, daemon/libnetwork/resolver_unix.go). Docker makes them at the target, too.
var (
	resolver          = []byte{127, 0, 0, 11}
	resolverChains    = []string{"DOCKER_OUTPUT", "DOCKER_POSTROUTING"}
	resolverTable     = "docker-dns"
	nftResolverChains = []string{"dns-dnat", "dns-snat"}
)

// families maps families to nft's names for them.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev",
	nftables.TableFamilyBridge: "bridge",
}

// builtin lists tables and chains that iptables-nft makes when it lists rules.
var (
	builtinTables = []string{"filter", "nat", "mangle", "raw", "security"}
	builtinChains = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
)

// tables finds the tables of nftables, including those of iptables-nft.
func tables(ctx context.Context, ns netns.NsHandle) ([]Finding, error) {
	long, err := tooLong(ctx, ns, filterLists)
	if withoutTables(err) {
		return nil, nil
	}
	if err != nil || len(long) > 0 {
		return long, err
	}
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return nil, err
	}
	all, err := conn.ListTables()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, table := range all {
		if ctx.Err() != nil {
			return nil, ctx.Err()
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

// withoutTables reports whether an error means that the kernel has no nf_tables.
func withoutTables(err error) bool {
	for _, none := range []error{unix.EINVAL, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP} {
		if errors.Is(err, none) {
			return true
		}
	}
	return false
}

// chainCheck reports whether an engine makes such a chain.
type chainCheck func(chain *nftables.Chain, rules []*nftables.Rule) bool

// checkOf returns the check for the chains of a table; nil if no engine makes such a table.
func checkOf(table *nftables.Table) chainCheck {
	switch family := families[table.Family]; {
	case table.Name == ownTable && family == "inet":
		return func(chain *nftables.Chain, rules []*nftables.Rule) bool {
			return isOwn(chain) && len(rules) == 1 && letsCRIU(rules[0].Exprs)
		}
	case table.Name == ownTable && family == "arp":
		return func(chain *nftables.Chain, rules []*nftables.Rule) bool {
			return isOwn(chain) && len(rules) == 0
		}
	case table.Name == resolverTable && family == "ip":
		return func(chain *nftables.Chain, rules []*nftables.Rule) bool {
			own := slices.Contains(nftResolverChains, chain.Name)
			return own && accepts(chain) && allResolvers(rules, own)
		}
	case table.Name == "nat" && (family == "ip" || family == "ip6"):
		return func(chain *nftables.Chain, rules []*nftables.Rule) bool {
			own := slices.Contains(resolverChains, chain.Name)
			known := own || slices.Contains(builtinChains, chain.Name)
			return known && accepts(chain) && allResolvers(rules, own)
		}
	case slices.Contains(builtinTables, table.Name) && (family == "ip" || family == "ip6"):
		return func(chain *nftables.Chain, rules []*nftables.Rule) bool {
			return slices.Contains(builtinChains, chain.Name) && accepts(chain) && len(rules) == 0
		}
	}
	return nil
}

// madeByEngine reports whether a table is Godwit's own, or has no rules but those of Docker's resolver.
func madeByEngine(conn *nftables.Conn, table *nftables.Table, chains []*nftables.Chain) (bool, error) {
	check := checkOf(table)
	if check == nil {
		return false, nil
	}
	for _, chain := range chains {
		rules, err := conn.GetRules(table, chain)
		if err != nil || !check(chain, rules) {
			return false, err
		}
	}
	return true, nil
}

func accepts(chain *nftables.Chain) bool {
	return chain.Policy == nil || *chain.Policy == nftables.ChainPolicyAccept
}

func isOwn(chain *nftables.Chain) bool {
	return slices.Contains(ownChains, chain.Name) && chain.Hooknum != nil && !accepts(chain)
}

// letsCRIU reports whether a rule accepts the packets that CRIU marks, and no others.
func letsCRIU(rule []expr.Any) bool {
	if len(rule) != 3 {
		return false
	}
	meta, _ := rule[0].(*expr.Meta)
	mark, _ := rule[1].(*expr.Cmp)
	does, _ := rule[2].(*expr.Verdict)
	return meta != nil && meta.Key == expr.MetaKeyMARK && mark != nil && mark.Op == expr.CmpOpEq &&
		bytes.Equal(mark.Data, binary.NativeEndian.AppendUint32(nil, criuMark)) &&
		does != nil && does.Kind == expr.VerdictAccept
}

func allResolvers(rules []*nftables.Rule, own bool) bool {
	return !slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return !isResolvers(r.Exprs, own) })
}

// isResolvers reports whether a rule belongs to Docker's resolver: it matches the resolver's address, and, in
// a chain that is not the resolver's own, jumps to one of the resolver's chains.
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
