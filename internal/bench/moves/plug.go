package moves

import (
	"context"
	"net/netip"
	"slices"

	"github.com/godwit/godwit/internal/bench/testbed"
)

// Plug is the network of a container that is not Godwit's: a namespace with a fixed address, the same on
// both nodes.
type Plug struct {
	Name   string
	Number byte
}

func (p Plug) namespace() string { return "/run/netns/" + p.Name }

func (p Plug) gateway() netip.Addr { return netip.AddrFrom4([4]byte{10, 66, p.Number, 1}) }

func (p Plug) address() netip.Addr { return netip.AddrFrom4([4]byte{10, 66, p.Number, 2}) }

// Server is the address of a server in the container.
func (p Plug) Server(port int) string { return netip.AddrPortFrom(p.address(), uint16(port)).String() }

func (p Plug) outside() string { return "to-" + p.Name }

// plugIn makes a container's network in a node anew, because CRIU's lock of an earlier stay is left in the
// old one.
func plugIn(ctx context.Context, b *testbed.Bed, node string, p Plug) error {
	if b.Has(node, p.namespace()) {
		err := b.All(ctx, node, []string{"ip", "link", "delete", p.outside()},
			[]string{"ip", "netns", "delete", p.Name})
		if err != nil {
			return err
		}
	}
	in := []string{"ip", "-n", p.Name}
	return b.All(ctx, node,
		[]string{"ip", "netns", "add", p.Name},
		[]string{"ip", "link", "add", p.outside(), "type", "veth", "peer", "name", "eth0", "netns", p.Name},
		[]string{"ip", "address", "add", p.gateway().String() + "/30", "dev", p.outside()},
		[]string{"ip", "link", "set", p.outside(), "up"},
		append(in, "address", "add", p.address().String()+"/30", "dev", "eth0"),
		append(slices.Clone(in), "link", "set", "lo", "up"),
		append(slices.Clone(in), "link", "set", "eth0", "up"),
	)
}
