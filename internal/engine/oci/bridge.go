package oci

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/godwit/godwit/internal/engine"
)

// maxPorts bounds the number of published ports that another node may announce for a container.
const maxPorts = 1024

// CheckBridge checks whether another node's description of a container's place on a bridge is plausible.
// The engine checks the rest.
func CheckBridge(d engine.Definition) error {
	own := d.Network
	switch {
	case !own.Address.Is4() || !own.Address.IsGlobalUnicast() || own.Bridge == "":
		return fmt.Errorf("address %s in network %.80q is not a valid address of a container",
			own.Address, own.Bridge)
	case own.PrefixBits < 1 || own.PrefixBits > 30:
		return fmt.Errorf("network %.80q has a prefix of %d bits", own.Bridge, own.PrefixBits)
	case len(d.Ports) > maxPorts:
		return fmt.Errorf("%d published ports: at most %d", len(d.Ports), maxPorts)
	}
	for _, port := range d.Ports {
		known := port.Protocol == "tcp" || port.Protocol == "udp"
		if !known || port.HostPort == 0 || port.ContainerPort == 0 || port.Host.IsValid() &&
			!port.Host.Is4() {
			return fmt.Errorf("published port %.100v is not valid", port)
		}
	}
	return nil
}

// TakenPorts refuses published ports on which something on this node listens, and ports of an address that
// this node does not have. If a container of the engine publishes the port, publisher names it.
func TakenPorts(ctx context.Context, ports []engine.Published,
	publisher func(engine.Published) string) []engine.Problem {
	var found []engine.Problem
	for _, port := range ports {
		err := tryPort(ctx, port)
		if err == nil {
			continue
		}
		one := engine.Problem{
			What:   fmt.Sprintf("published port %d/%s", port.HostPort, port.Protocol),
			Why:    "it is not available on this node: " + err.Error(),
			Remedy: "end the program that uses it, or publish another port",
		}
		if who := publisher(port); who != "" {
			one.Why, one.Remedy = "container "+who+" publishes it on this node", "remove that container"
		}
		found = append(found, one)
	}
	return found
}

// tryPort listens on a port for a moment.
func tryPort(ctx context.Context, port engine.Published) error {
	host := port.Host
	if !host.IsValid() {
		host = netip.IPv4Unspecified()
	}
	address := net.JoinHostPort(host.String(), strconv.Itoa(int(port.HostPort)))
	if port.Protocol == "udp" {
		socket, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp4", address)
		if err != nil {
			return err
		}
		return socket.Close()
	}
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", address)
	if err != nil {
		return err
	}
	return socket.Close()
}

// Publishes reports whether a container is reachable by a port of its node.
func Publishes(d engine.Definition, port engine.Published) bool {
	for _, one := range d.Ports {
		if one.Protocol == port.Protocol && one.HostPort == port.HostPort &&
			(one.Host == port.Host || !one.Host.IsValid() || !port.Host.IsValid()) {
			return true
		}
	}
	return false
}
