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

// hostConnections refuses established connections of a container in the node's own network: their address stays on this node.
func hostConnections(first int, pids []int) ([]engine.Problem, error) {
	hosts, err := sameFile(fmt.Sprintf("/proc/%d/ns/net", first), "/proc/self/ns/net")
	if err != nil || !hosts {
		return nil, err
	}
	own, err := socketsOf(pids)
	if err != nil || len(own) == 0 {
		return nil, err
	}
	for _, name := range []string{"tcp", "tcp6"} {
		remote, err := connectedTo(fmt.Sprintf("/proc/%d/net/%s", pids[0], name), own)
		if err != nil {
			return nil, err
		}
		if remote != "" {
			return []engine.Problem{{
				What: "connection with " + remote, Why: "with --network host it has the address of this node, which stays here",
				Remedy: "close it before the move",
			}}, nil
		}
	}
	return nil, nil
}

// socketsOf are the inodes of the sockets of processes.
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

// connectedTo finds whom one of the sockets is connected with, outside of this node; "" if none is.
func connectedTo(path string, sockets []string) (string, error) {
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
		fields := strings.Fields(lines.Text()) // sl local remote st queues timer retransmits uid timeout inode
		if len(fields) < 10 || fields[3] != established || !slices.Contains(sockets, fields[9]) {
			continue
		}
		if remote, ok := parseEndpoint(fields[2]); ok && !remote.Addr().Unmap().IsLoopback() {
			return remote.String(), nil
		}
	}
	return "", lines.Err()
}

// parseEndpoint reads an address as the kernel shows it: words of four bytes in the order of this machine, and a port.
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
