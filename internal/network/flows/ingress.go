package flows

import (
	"errors"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/nft"
)

// Connections without address translation lose only their ingress marks when an engine deletes their
// conntrack entries. SaveConntrack saves these marks in a third map. When the container's next packet
// creates a new conntrack entry, the packet filter restores the mark. The answer then leaves through its
// ingress node, and the engine does not masquerade it.

// MapIngress is the map of ingress marks, by the packets that the container sends.
const MapIngress = "ingress"

// addIngress adds the ingress mark of a connection whose addresses are not translated.
func (f *Elements) addIngress(forward, reverse packetKind, ip netip.Addr, mark uint32, ends bool) {
	if mark == 0 {
		return
	}
	leaves, timeout := reverse, Idle
	if forward.from.Addr() == ip {
		leaves = forward
	}
	if ends || leaves.protocol == unix.IPPROTO_UDP {
		timeout = Over
	}
	f.ingress = append(f.ingress, nftables.SetElement{Key: leaves.key(), Val: nft.Native(mark),
		Timeout: timeout})
}

// replaceIngress adds ingress marks, with their full timeouts: packets do not renew them. If the map
// is full, the rest is left out: those connections wait until their clients send.
func replaceIngress(conn *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	wanted := map[string]bool{}
	for _, e := range elements {
		wanted[string(e.Key)] = true
	}
	if err := removeElements(conn, set,
		func(e nftables.SetElement) bool { return wanted[string(e.Key)] }); err != nil {
		return err
	}
	if err := addElements(conn, set, elements); !errors.Is(err, unix.ENFILE) {
		return err
	}
	return nil
}

// makeIngress adds the map of ingress marks and its chain, also to a table that an older Godwit made. The
// chain runs after that of ingress marks (package filter) and overrides the mark, which would route the
// packet to the container's previous node. A new tracking entry has no mark of its own yet. A packet that has
// come to leave here is not sent back: its mark is this node's own already.
func (f Flows) makeIngress(conn *nftables.Conn, table *nftables.Table, sets Sets) error {
	if err := conn.AddSet(sets.ingress, nil); err != nil {
		return err
	}
	chain := conn.AddChain(&nftables.Chain{Name: "ingress", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityMangle + 3)})
	conn.FlushChain(chain)
	add := nft.Adder(conn, table, chain)
	restored := nft.Join(nft.NotMarkedWith(f.Number), loadFlow(false), findFlow(sets.ingress),
		nft.Exprs(&expr.Ct{Key: expr.CtKeyMARK, Register: registerFound, SourceRegister: true},
			&expr.Meta{Key: expr.MetaKeyMARK, Register: registerFound, SourceRegister: true}))
	tcp := nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpEq)
	add(tcp, nft.InState(expr.CtStateBitNEW), nft.OpensNone(), restored)
	add(nft.Protocol(unix.IPPROTO_UDP, expr.CmpOpEq), nft.InState(expr.CtStateBitNEW), restored)
	return conn.Flush()
}
