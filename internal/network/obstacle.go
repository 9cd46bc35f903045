package network

import (
	"fmt"

	"github.com/google/nftables"
)

// Obstacles tells what on this node, that is not ours to change, may keep containers' packets from being forwarded, and
// what the user can do. A chain of another program that drops what it does not know (Docker's and ufw's do) has the
// last word: no acceptance in our own table can outvote it.
func (n *Network) Obstacles() ([]string, error) {
	conn, err := n.filter()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list the chains of the packet filter: %w", err)
	}
	var obstacles []string
	for _, chain := range chains {
		forwards := chain.Hooknum != nil && *chain.Hooknum == *nftables.ChainHookForward &&
			(chain.Table.Family == nftables.TableFamilyIPv4 || chain.Table.Family == nftables.TableFamilyINet)
		if !forwards || chain.Table.Name == tableName || chain.Policy == nil || *chain.Policy != nftables.ChainPolicyDrop {
			continue
		}
		obstacles = append(obstacles, fmt.Sprintf("chain %s of packet filter table %s drops forwarded packets that it does not "+
			"know; let it accept those with a source or destination in %s", chain.Name, chain.Table.Name, n.config.Pool))
	}
	return obstacles, nil
}
