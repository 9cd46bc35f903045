package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Port is a port on which a process waits for connections (tcp) or datagrams from anybody (udp).
type Port struct {
	Protocol string
	Number   uint16
}

// maxPortLines bounds how much of a table is read.
const maxPortLines = 1 << 20

// ReadPorts lists the ports on which processes wait in the network namespace of a process, once for each
// socket.
func ReadPorts(pid int) ([]Port, error) {
	var ports []Port
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		file, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(table, "6") {
			continue // no IPv6 here
		}
		if err != nil {
			return nil, fmt.Errorf("list ports of process %d: %w", pid, err)
		}
		found, err := parsePorts(file, strings.TrimSuffix(table, "6"))
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("list ports of process %d: %w", pid, err)
		}
		ports = append(ports, found...)
	}
	return ports, nil
}

// The states that count (include/net/tcp_states.h). A bound and unconnected UDP socket is in state "close".
const (
	stateListen = "0A"
	stateClose  = "07"
)

// parsePorts reads a table of /proc/net: "0: 00000000:18EB 00000000:0000 0A ...".
func parsePorts(table io.Reader, protocol string) ([]Port, error) {
	wanted := map[string]string{"tcp": stateListen, "udp": stateClose}[protocol]
	var ports []Port
	lines := bufio.NewScanner(table)
	for n := 0; lines.Scan() && n < maxPortLines; n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != wanted {
			continue
		}
		_, number, _ := strings.Cut(fields[1], ":")
		_, remote, _ := strings.Cut(fields[2], ":")
		port, err := strconv.ParseUint(number, 16, 16)
		if err != nil || port == 0 || remote != "0000" {
			continue
		}
		ports = append(ports, Port{Protocol: protocol, Number: uint16(port)})
	}
	return ports, lines.Err()
}
