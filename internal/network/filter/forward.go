package filter

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
)

// forwardChain drops packets that must not be forwarded: all packets of the encrypted device, which only
// the tunnel uses; from the tunnel, packets unrelated to any container; and, if the node did not forward
// before, all other packets unrelated to any container.
func (f *Filter) forwardChain(conn *nftables.Conn, table *nftables.Table, bridged *nftables.Set) {
	chain := conn.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookForward,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10)})
	add := nft.Adder(conn, table, chain)
	for _, key := range []expr.MetaKey{expr.MetaKeyIIFGROUP, expr.MetaKeyOIFGROUP} {
		add(nft.Group(key, pool.GroupOverlay), nft.Drop())
	}
	for _, offset := range []uint32{nft.OffsetSource, nft.OffsetDestination} {
		add(nft.InPrefix(offset, f.config.Pool.Prefix, true), nft.Accept())
		for _, packets := range f.bridgedAlternatives(offset, nft.AddressIn(offset, bridged)) {
			add(packets, nft.Accept())
		}
	}
	add(nft.FromGroup(pool.GroupTunnel), nft.Drop())
	if !f.config.Guarded {
		return
	}
	for _, key := range []expr.MetaKey{expr.MetaKeyIIFGROUP, expr.MetaKeyOIFGROUP} {
		for _, number := range []uint32{pool.GroupContainer, pool.GroupTunnel, pool.GroupHold} {
			add(nft.Group(key, number), nft.Accept())
		}
	}
	for _, key := range []expr.MetaKey{nft.MetaKeyIIFKIND, nft.MetaKeyOIFKIND} {
		for _, kind := range containerKinds {
			add(nft.OfKind(key, kind), nft.Accept())
		}
	}
	add(nft.Drop())
}

// containerKinds are the kinds of interfaces by which engines connect containers to their node.
var containerKinds = []string{"bridge", "veth"}
