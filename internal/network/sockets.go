package network

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
)

// Connection is an established TCP connection of a container.
type Connection struct {
	Local        netip.AddrPort `json:"local"`
	Remote       netip.AddrPort `json:"remote"`
	UnreadBytes  uint32         `json:"unread_bytes"`  // received, not yet read by the container
	UnackedBytes uint32         `json:"unacked_bytes"` // sent by the container, not yet acknowledged
}

// Established lists the established TCP connections in an attached container's namespace, except those
// within the container.
func (n *containers) Established(id string) ([]Connection, error) {
	if !pool.ValidID.MatchString(id) || !namespace.Is(n.NetnsPath(id)) {
		return nil, fmt.Errorf("list connections of container %q: %w", id, ErrNotAttached)
	}
	inside, err := namespace.Open(n.NetnsPath(id))
	if err != nil {
		return nil, err
	}
	defer func() { _ = inside.Close() }()
	handle, err := netlink.NewHandleAt(inside, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open a socket diagnosis socket: %w", err)
	}
	defer handle.Close()
	var connections []Connection
	// a listener on :: accepts IPv4 on IPv6 sockets
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := handle.SocketDiagTCP(family)
		if err != nil && !(family == unix.AF_INET6 && errors.Is(err, unix.ENOENT)) {
			return nil, fmt.Errorf("list connections of container %s: %w", id, err)
		}
		for _, socket := range sockets {
			if connection, ok := toConnection(socket); ok {
				connections = append(connections, connection)
			}
		}
	}
	return connections, nil
}

// toConnection converts a socket, if it is an established connection to the outside.
func toConnection(socket *netlink.Socket) (Connection, bool) {
	local, okLocal := netip.AddrFromSlice(socket.ID.Source)
	remote, okRemote := netip.AddrFromSlice(socket.ID.Destination)
	if !okLocal || !okRemote || socket.State != netlink.TCP_ESTABLISHED || remote.IsLoopback() ||
		remote.Unmap().IsLoopback() {
		return Connection{}, false
	}
	return Connection{
		Local:       netip.AddrPortFrom(local.Unmap(), socket.ID.SourcePort),
		Remote:      netip.AddrPortFrom(remote.Unmap(), socket.ID.DestinationPort),
		UnreadBytes: socket.RQueue, UnackedBytes: socket.WQueue,
	}, true
}
