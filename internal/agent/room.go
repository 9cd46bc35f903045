package agent

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
)

// memoryOf is the memory of a container's processes that can travel, pages that they share counted once for each of
// them: an upper limit.
func (a *Agent) memoryOf(ctx context.Context, id string) (int64, error) {
	container, err := a.engine.Inspect(ctx, id)
	if err != nil {
		return 0, err
	}
	if container.PID == 0 {
		return 0, fmt.Errorf("%w: %s", engine.ErrNotRunning, container.Definition.Name)
	}
	group, err := kernel.CgroupOf(container.PID)
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

// queuedIn is what waits in a container's TCP connections: tens of megabytes in each that is busy, if the kernel lets
// it (tcp(7), tcp_rmem).
func (a *Agent) queuedIn(id string) (bytes int64) {
	connections, err := a.network.Established(id)
	if err != nil {
		a.log.Warn("connections of a container", "container", id, "error", err) // the estimate is so much too low
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

// At the target the memory is there twice while the processes are made: as they will have it, and in the files from which
// CRIU makes it. At the source it is in files beside the frozen processes.
const copiesAtTarget = 2

// examineRoom compares what comes with the memory and the disk that are free.
func (a *Agent) examineRoom(offer *api.Offer) []migration.Problem {
	var problems []migration.Problem
	needed, promised := copiesAtTarget*offer.MemoryBytes, a.reservations.promised(offer.Migration)
	if free, err := kernel.MemoryAvailable(); err == nil && free-promised < needed {
		problems = append(problems, migration.Problem{
			What: "memory of " + a.self.Name, Why: fmt.Sprintf(
				"%d MiB are needed, twice what the container has, while its processes are made; %d MiB are available, of which other migrations need %d",
				needed>>20, free>>20, promised>>20),
			Remedy: "free memory there, or choose another node",
		})
	}
	if err := files.CheckSpace(a.config.StateDir, offer.TreesBytes); err != nil {
		problems = append(problems, migration.Problem{
			What: "disk of " + a.self.Name, Why: err.Error(), Remedy: "free space there, or choose another node",
		})
	}
	return problems
}

// examineOwnRoom looks whether there is room for the execution state beside the container that it is made from.
func (a *Agent) examineOwnRoom(offer *api.Offer) []engine.Problem {
	free, err := kernel.MemoryAvailable()
	if err != nil || free >= offer.MemoryBytes {
		return nil
	}
	return []engine.Problem{{
		What:   "memory of " + a.self.Name,
		Why:    fmt.Sprintf("the container's state takes up to %d MiB while it leaves, %d MiB are available", offer.MemoryBytes>>20, free>>20),
		Remedy: "free memory on this node",
	}}
}
