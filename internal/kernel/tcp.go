package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// States of a TCP socket in /proc/net/tcp (include/net/tcp_states.h).
const (
	tcpSynReceived = 3
	tcpListening   = 10
)

// PendingConnections counts the TCP connections in a process's network namespace that are not accepted yet: those in
// the middle of the handshake, and those in the queues of listening sockets. A dump loses them, and the peer is reset,
// so it is worth a few milliseconds to let the application accept them before it is frozen.
func PendingConnections(pid int) (int, error) {
	total := 0
	for _, file := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, file))
		if errors.Is(err, fs.ErrNotExist) && file == "tcp6" {
			continue // the kernel has no IPv6
		}
		if err != nil {
			return 0, fmt.Errorf("count pending connections of process %d: %w", pid, err)
		}
		total += parsePending(string(data))
	}
	return total, nil
}

// parsePending reads /proc/net/tcp (Documentation/networking/proc_net_tcp.rst): the state is field 4, the receive queue
// is the second half of field 5, and for a listening socket it is the number of connections to be accepted.
func parsePending(text string) int {
	const state, queues = 3, 4
	total := 0
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) <= queues {
			continue
		}
		s, err := strconv.ParseUint(fields[state], 16, 8)
		if err != nil {
			continue // the heading
		}
		_, queue, _ := strings.Cut(fields[queues], ":")
		n, err := strconv.ParseUint(queue, 16, 31)
		switch {
		case s == tcpSynReceived:
			total++
		case s == tcpListening && err == nil:
			total += int(n)
		}
	}
	return total
}
