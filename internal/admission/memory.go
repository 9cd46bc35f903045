package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/network"
)

// MemoryOf is the memory of a container's processes that can travel, pages that they share counted
// once for each of them: an upper limit.
func (a *Admission) MemoryOf(ctx context.Context, id string) (int64, error) {
	container, err := a.engines.Inspect(ctx, id)
	if err != nil {
		return 0, err
	}
	if container.PID == 0 {
		return 0, fmt.Errorf("%w: %s", engine.ErrNotRunning, container.Definition.Name)
	}
	group, err := cgroup.Of(container.PID)
	if err != nil {
		return 0, err
	}
	pids, err := group.Procs()
	if err != nil {
		return 0, err
	}
	var bytes int64
	for _, pid := range pids {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err == nil { // otherwise it has just ended
			bytes += travelling(string(status))
		}
	}
	return bytes + a.queuedIn(id), nil
}

// queuedIn is what waits in a container's TCP connections: tens of megabytes in each that is busy,
// if the kernel lets it (tcp(7), tcp_rmem).
func (a *Admission) queuedIn(id string) (bytes int64) {
	connections, err := a.network.Established(id)
	// the network of an engine's own is not looked at
	if err != nil && !errors.Is(err, network.ErrNotAttached) {
		// the estimate is so much too low
		a.log.Warn("connections of a container", "container", id, "error", err)
	}
	for _, connection := range connections {
		bytes += int64(connection.UnreadBytes) + int64(connection.UnackedBytes)
	}
	return bytes
}

// travelling is the memory of a process that CRIU writes, from proc(5) status: not what is in files anyway.
func travelling(status string) (bytes int64) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "RssAnon", "RssShmem", "VmSwap":
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err == nil && kib > 0 {
				bytes += kib << 10
			}
		}
	}
	return bytes
}
