package foreign

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// Obstacle is something on this machine, outside Godwit's control, that may block packets of containers.
type Obstacle struct {
	What, Remedy string
}

// String returns the obstacle and its remedy in one line.
func (o Obstacle) String() string { return o.What + ": " + o.Remedy }

// Obstacles lists the obstacles to a pool's packets: chains of other programs that drop unknown packets,
// and other programs' networks within the pool. Docker and ufw have such chains, and no rule in our own
// table can overrule them.
func Obstacles(path string, pool netip.Prefix) ([]Obstacle, error) {
	found, err := droppers(path, pool)
	if err != nil {
		return nil, err
	}
	uses, err := usesIn(path, pool, nil)
	if err != nil {
		return nil, err
	}
	for _, u := range uses {
		found = append(found, Obstacle{
			What: fmt.Sprintf("%s overlaps the pool of container addresses, %s", u.what, pool),
			Remedy: "this node cannot reach both a machine there and a container with the same address; " +
				"give one of the two another network",
		})
	}
	return found, nil
}

// droppers lists the chains that drop packets forwarded to or from a pool.
func droppers(path string, pool netip.Prefix) ([]Obstacle, error) {
	ns, err := namespace.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ns.Close() }()
	conn, err := nft.Open(ns)
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list the chains of the packet filter: %w", err)
	}
	var found []Obstacle
	for _, chain := range chains {
		forwards := chain.Hooknum != nil && *chain.Hooknum == *nftables.ChainHookForward &&
			(chain.Table.Family == nftables.TableFamilyIPv4 || chain.Table.Family == nftables.TableFamilyINet)
		if !forwards || chain.Table.Name == nft.TableName || chain.Policy == nil ||
			*chain.Policy != nftables.ChainPolicyDrop {
			continue
		}
		beside := slices.DeleteFunc(slices.Clone(chains), func(c *nftables.Chain) bool {
			return c.Table.Name != chain.Table.Name || c.Table.Family != chain.Table.Family
		})
		if accepted(conn, beside, pool) {
			continue
		}
		found = append(found, Obstacle{
			What: fmt.Sprintf("chain %s of packet filter table %s drops forwarded packets that it does "+
				"not know, such as those of containers in %s",
				chain.Name, chain.Table.Name, pool),
			Remedy: acceptance(chain, beside, pool),
		})
	}
	return found, nil
}

// orAllow names the command that lets the agent keep such rules.
const orAllow = "; or let the agent keep such rules, also after a boot: godwit engine setup --firewall"

// acceptance returns the commands that let packets of a pool pass, in the place that the chain's program
// provides for such rules.
func acceptance(chain *nftables.Chain, beside []*nftables.Chain, pool netip.Prefix) string {
	has := func(name string) bool {
		return slices.ContainsFunc(beside, func(c *nftables.Chain) bool { return c.Name == name })
	}
	both := func(format string, from, to string) string {
		return fmt.Sprintf(format, from, pool) + " && " + fmt.Sprintf(format, to, pool)
	}
	switch {
	case chain.Table.Name != "filter" || chain.Name != "FORWARD":
		family := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip",
			nftables.TableFamilyINet: "inet"}[chain.Table.Family]
		return both("nft insert rule "+family+" "+chain.Table.Name+" "+chain.Name+" ip %s %s accept", "saddr",
			"daddr")
	case has(PassChain):
		return both("iptables -I DOCKER-USER %s %s -j ACCEPT", "-s", "-d") + orAllow
	case has(UserChain):
		return both("ufw route allow %s %s", "from", "to") + orAllow
	}
	return both("iptables -I FORWARD %s %s -j ACCEPT", "-s", "-d")
}

// accepted reports whether chains have rules that accept packets from a pool and to a pool. Chains whose
// rules this program cannot read, such as extensions of iptables, count as if they had none.
func accepted(conn *nftables.Conn, chains []*nftables.Chain, pool netip.Prefix) bool {
	ends := map[uint32]bool{}
	for _, chain := range chains {
		rules, err := conn.GetRules(chain.Table, chain)
		if err != nil {
			continue
		}
		for _, rule := range rules {
			if offset, is := acceptsPool(rule.Exprs, pool); is {
				ends[offset] = true
			}
		}
	}
	return ends[nft.OffsetSource] && ends[nft.OffsetDestination]
}

// acceptsPool reports whether a rule accepts all packets with an address of a pool, and the offset of that
// address in the header.
func acceptsPool(rule []expr.Any, pool netip.Prefix) (offset uint32, is bool) {
	var compared, accepts, protocol bool
	base := pool.Addr().AsSlice()
	for _, part := range rule {
		switch part := part.(type) {
		case *expr.Meta:
			if part.Key != expr.MetaKeyNFPROTO {
				return 0, false
			}
			protocol = true // and the rule compares it with IPv4
		case *expr.Payload:
			if part.Base != expr.PayloadBaseNetworkHeader {
				return 0, false
			}
			offset = part.Offset
		case *expr.Cmp:
			if protocol {
				protocol = false
				continue
			}
			compared = part.Op == expr.CmpOpEq && len(part.Data) <= len(base) &&
				len(part.Data)*8 >= pool.Bits() && bytes.Equal(part.Data, base[:len(part.Data)])
			if !compared {
				return 0, false
			}
		case *expr.Bitwise:
			if mask := rtnl.IPNet(pool).Mask; !bytes.Equal(part.Mask, mask) {
				return 0, false
			}
		case *expr.Verdict:
			accepts = part.Kind == expr.VerdictAccept
		case *expr.Counter:
		case *expr.Match:
			if part.Name != "comment" {
				return 0, false
			}
		default:
			return 0, false // the rule has further conditions
		}
	}
	return offset, compared && accepts
}
