package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload"
)

// plug is the network of a container that is not Godwit's: a namespace with a fixed address, the same on
// both nodes.
type plug struct {
	name   string
	number byte
}

func (p plug) namespace() string { return "/run/netns/" + p.name }

func (p plug) gateway() netip.Addr { return netip.AddrFrom4([4]byte{10, 66, p.number, 1}) }

func (p plug) address() netip.Addr { return netip.AddrFrom4([4]byte{10, 66, p.number, 2}) }

func (p plug) server(port int) string { return netip.AddrPortFrom(p.address(), uint16(port)).String() }

func (p plug) outside() string { return "to-" + p.name }

// plugIn makes a container's network in a node anew, because CRIU's lock of an earlier stay is left in the
// old one.
func plugIn(ctx context.Context, b *testbed.Bed, node string, p plug) error {
	if b.Has(node, p.namespace()) {
		err := b.All(ctx, node, []string{"ip", "link", "delete", p.outside()},
			[]string{"ip", "netns", "delete", p.name})
		if err != nil {
			return err
		}
	}
	in := []string{"ip", "-n", p.name}
	return b.All(ctx, node,
		[]string{"ip", "netns", "add", p.name},
		[]string{"ip", "link", "add", p.outside(), "type", "veth", "peer", "name", "eth0", "netns", p.name},
		[]string{"ip", "address", "add", p.gateway().String() + "/30", "dev", p.outside()},
		[]string{"ip", "link", "set", p.outside(), "up"},
		append(in, "address", "add", p.address().String()+"/30", "dev", "eth0"),
		append(slices.Clone(in), "link", "set", "lo", "up"),
		append(slices.Clone(in), "link", "set", "eth0", "up"),
	)
}

// fill connects to a Redis that may still be starting, and stores the data of the workload.
func fill(ctx context.Context, b *testbed.Bed, machine, address string) (net.Conn, *workload.RedisCounter,
	error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		conn, err := b.Lab.Dial(ctx, machine, "tcp", address)
		if err == nil {
			counter := workload.NewRedisCounter(conn)
			if err := counter.Fill(redisDataBytes); err != nil {
				return nil, nil, errors.Join(err, conn.Close())
			}
			return conn, counter, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%s does not answer: %w", address, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
