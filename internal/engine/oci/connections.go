package oci

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/engine"
)

// established is TCP_ESTABLISHED in /proc/PID/net/tcp (include/net/tcp_states.h).
const established = "01"

// hostConnections refuses established connections of a container in the node's own network: their address
// stays on this node.
func hostConnections(first int, pids []int) ([]engine.Problem, error) {
	hosts, err := sameFile(fmt.Sprintf("/proc/%d/ns/net", first), "/proc/self/ns/net")
	if err != nil || !hosts {
		return nil, err
	}
	own, err := socketsOf(pids)
	if err != nil || len(own) == 0 {
		return nil, err
	}
	remote, err := connectedBy(pids, own, func(ip netip.Addr) bool { return !ip.IsLoopback() })
	if err != nil || remote == "" {
		return nil, err
	}
	return []engine.Problem{{
		What:   "connection with " + remote,
		Why:    "with --network host the connection has the address of this node, which stays here",
		Remedy: "close it before the move",
	}}, nil
}

// neighbourConnections also refuses connections between a container on a bridge and others on that bridge:
// the node itself, or another container. At the target, other hosts have these addresses on the bridge,
// unless nodes route them to each other.
func neighbourConnections(own engine.Network, pids []int) ([]engine.Problem, error) {
	sockets, err := socketsOf(pids)
	if err != nil || !own.OnBridge() || own.Routed {
		return nil, err
	}
	bridge := netip.PrefixFrom(own.Address, own.PrefixBits).Masked()
	remote, err := connectedBy(pids, sockets,
		func(ip netip.Addr) bool { return ip != own.Address && bridge.Contains(ip) })
	if err != nil || remote == "" {
		return nil, err
	}
	return []engine.Problem{{
		What:   "connection with " + remote,
		Why:    "its other end is this node, or a container on the same network, which stays here",
		Remedy: "close it before the move",
	}}, nil
}

// connectedBy returns the peer of a connection of the sockets of processes of one network namespace, or ""
// if no peer's address matches.
func connectedBy(pids []int, sockets []string, match func(netip.Addr) bool) (string, error) {
	for _, name := range []string{"tcp", "tcp6"} {
		remote, err := connectedTo(fmt.Sprintf("/proc/%d/net/%s", pids[0], name), sockets, match)
		if err != nil || remote != "" {
			return remote, err
		}
	}
	return "", nil
}

// socketsOf returns the inodes of the sockets of processes.
func socketsOf(pids []int) ([]string, error) {
	var inodes []string
	for _, pid := range pids {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			return nil, err
		}
		for _, link := range links {
			target, err := os.Readlink(link)
			if inode, is := strings.CutPrefix(target, "socket:["); err == nil && is {
				inodes = append(inodes, strings.TrimSuffix(inode, "]"))
			}
		}
	}
	return inodes, nil
}

// connectedTo returns the peer of one of the sockets, or "" if no address matches.
func connectedTo(path string, sockets []string, match func(netip.Addr) bool) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) { // the process has ended, or there is no IPv6
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// sl local remote st queues timer retransmits uid timeout inode
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != established || !slices.Contains(sockets, fields[9]) {
			continue
		}
		if remote, ok := parseEndpoint(fields[2]); ok && match(remote.Addr().Unmap()) {
			return netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()).String(), nil
		}
	}
	return "", lines.Err()
}

// parseEndpoint reads an address as the kernel shows it: words of four bytes in this machine's byte order,
// and a port.
func parseEndpoint(text string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(text, ":")
	bytes, err := hex.DecodeString(address)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || len(bytes)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(bytes, 4) { // both architectures that Godwit runs on are little-endian
		slices.Reverse(word)
	}
	addr, ok := netip.AddrFromSlice(bytes)
	return netip.AddrPortFrom(addr, uint16(number)), ok
}
