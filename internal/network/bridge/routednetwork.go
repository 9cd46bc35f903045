package bridge

import (
	"fmt"
	"net/netip"

	"github.com/godwit/godwit/internal/network/pool"
)

// RoutedNetwork is a network of an engine that all nodes have, each with a bridge of its own. The subnet is
// the same everywhere, and each node's engine assigns addresses from the part with the node's number, as in
// the pool. So no address is assigned twice, and a container that moves finds its neighbours at the same
// addresses.
type RoutedNetwork struct {
	Device string // the bridge
	Subnet netip.Prefix
}

// Part returns the part of a routed network's subnet from which a node's engine assigns addresses.
func (r RoutedNetwork) Part(number int) (netip.Prefix, error) {
	p := pool.Pool{Prefix: r.Subnet}
	bits := r.Subnet.Bits()
	if !r.Subnet.Addr().Is4() || r.Subnet != r.Subnet.Masked() || bits < 8 || bits >= pool.SubnetBits {
		return netip.Prefix{}, fmt.Errorf("subnet %s is %w: it must be an IPv4 prefix of 8 to 23 bits",
			r.Subnet, pool.ErrInvalid)
	}
	if err := p.CheckNumber(number); err != nil {
		return netip.Prefix{}, err
	}
	return p.Subnet(number), nil
}
