package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// DialProgram connects to a program that may still be starting.
func (b *Bed) DialProgram(ctx context.Context, machine, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		conn, err := b.Lab.Dial(ctx, machine, "tcp", address)
		if err == nil {
			return conn, nil
		}
		if pauseErr := Pause(ctx, time.Millisecond); pauseErr != nil {
			return nil, fmt.Errorf("the program at %s does not answer: %w", address, err)
		}
	}
}

// Asking is how long one question may take: a program that waits for pages answers late.
const Asking = 10 * time.Minute

// Pause waits for a time, or until the context ends.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// DialBeside connects to a server that may still be starting, from the network of a process of a node.
func (b *Bed) DialBeside(ctx context.Context, node string, pid, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)).String()
	for {
		conn, err := b.Lab.DialBeside(ctx, node, pid, "tcp", address)
		if err == nil {
			return conn, nil
		}
		if pauseErr := Pause(ctx, 20*time.Millisecond); pauseErr != nil {
			return nil, errors.Join(err, pauseErr)
		}
	}
}

// AwaitDaemon waits until a daemon listens on a node.
func (b *Bed) AwaitDaemon(ctx context.Context, node string, port uint16) error {
	address, err := b.Lab.Address(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := b.DialProgram(ctx, node, netip.AddrPortFrom(address, port).String())
	if err != nil {
		return err
	}
	return conn.Close()
}
