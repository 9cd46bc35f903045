package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// UnreadDatagrams returns how many bytes, including the kernel's overhead, wait to be read in the UDP
// sockets of a process's network namespace. A dump loses them (criu/sk-inet.c: "Read queue is dropped"), so
// it is worth a few milliseconds to let the application read them before the freeze.
func UnreadDatagrams(pid int) (int64, error) {
	var total int64
	for _, file := range []string{"udp", "udp6", "udplite", "udplite6"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, file))
		if errors.Is(err, fs.ErrNotExist) && file != "udp" {
			continue // the kernel has no IPv6, or no UDP-Lite
		}
		if err != nil {
			return 0, fmt.Errorf("look for unread datagrams of process %d: %w", pid, err)
		}
		total += parseUnread(string(data))
	}
	return total, nil
}

// parseUnread adds up the receive queues of /proc/PID/net/udp (proc_pid_net(5)): the fifth column is
// transmit:receive, in hexadecimal.
func parseUnread(text string) int64 {
	const queues = 4
	var total int64
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) <= queues {
			continue
		}
		_, queue, _ := strings.Cut(fields[queues], ":")
		if n, err := strconv.ParseUint(queue, 16, 32); err == nil { // not the heading
			total += int64(n)
		}
	}
	return total
}
