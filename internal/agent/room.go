package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/transfer/layers"
)

// memoryOf is the memory of a container's processes that can travel, pages that they share counted
// once for each of them: an upper limit.
func (a *Agent) memoryOf(ctx context.Context, id string) (int64, error) {
	container, err := a.engines.Inspect(ctx, id)
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

// queuedIn is what waits in a container's TCP connections: tens of megabytes in each that is busy,
// if the kernel lets it (tcp(7), tcp_rmem).
func (a *Agent) queuedIn(id string) (bytes int64) {
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

// examineRoom compares what comes with the memory and the disk that are free.
func (a *Agent) examineRoom(from string, definition engine.Definition, offer *api.Offer) ([]migration.Problem,
	error) {
	coming, err := comingOf(definition, offer)
	if err != nil {
		return nil, err
	}
	var problems []migration.Problem
	staged, reserved := a.stagedCopies.Of(definition.ID)
	own := slices.Concat(reserved, []string{offer.Migration})
	needed := envelopes.MemoryCopies(offer)*offer.MemoryBytes + coming.memory - staged
	promised := a.reservations.Promised(own...)
	free, err := kernel.MemoryAvailable()
	if short := needed - (free - promised); err == nil && short > 0 && short <= a.residuals.Bytes() {
		if !offer.DryRun {
			a.residuals.Yield(short)
		}
		free = needed + promised
	}
	if err == nil && free-promised < needed {
		problems = append(problems, migration.Problem{
			What: "memory of " + a.self.Name, Why: fmt.Sprintf(
				"%d MiB are needed, %s; %d MiB are available, of which other migrations need %d",
				needed>>20, whyMemory(offer, coming), free>>20, promised>>20),
			Remedy: "free memory there, or choose another node",
		})
	}
	problems = append(problems, a.examineShare(from, offer.Migration, needed, reserved)...)
	image, err := a.imageNeed(definition, offer)
	if err != nil {
		return nil, err
	}
	coming.rest += image
	disks, err := a.examineDisks(definition, coming, offer.DryRun)
	return slices.Concat(problems, disks, a.examineTmpfs(definition, coming)), err
}

// examineShare keeps one node from reserving all memory, so that containers of others can come, too. A single
// container may take all that is free, unless the policy has a limit: it could not come otherwise.
func (a *Agent) examineShare(from, id string, needed int64, own []string) []migration.Problem {
	reserved, free := a.reservations.PromisedTo(from, id, own...)
	limit, which := max(free, a.freeForContainers())/4*3, "three quarters of the free memory"
	if set := a.config.Policy.MaxMemoryPerNodeBytes; set > 0 {
		limit, which = set, "max_memory_per_node_bytes in its policy"
	} else if reserved == 0 {
		return nil
	}
	if reserved+needed <= limit {
		return nil
	}
	return []migration.Problem{{
		What: "memory of " + a.self.Name,
		Why: fmt.Sprintf("containers from %s may reserve %d MiB at the same time (%s); %d MiB are reserved, "+
			"and this container needs %d MiB", from, limit>>20, which, reserved>>20, needed>>20),
		Remedy: "wait until the others have arrived, or ask the administrator of " + a.self.Name +
			" to change max_memory_per_node_bytes in its policy file",
	}}
}

// freeForContainers is the memory that containers can have: residual copies yield to them.
func (a *Agent) freeForContainers() int64 {
	free, err := kernel.MemoryAvailable()
	if err != nil {
		return 0 // examineRoom tells
	}
	return free + a.residuals.Bytes()
}

// imageNeed is what the image takes on the disk when it is brought. An engine that keeps images
// itself gets it from the spool.
func (a *Agent) imageNeed(definition engine.Definition, offer *api.Offer) (int64, error) {
	images, err := a.imagesOf(definition)
	if err != nil || images == nil {
		return layers.Need(a.layers.Missing(offer.Layers)), err
	}
	const copies = 3 // in the spool, and as the engine gets and unpacks it
	var bytes int64
	for _, layer := range offer.Layers {
		if !a.layers.OnNode(layer.DiffId) {
			bytes += copies * layer.ArchiveBytes
		}
	}
	return bytes, nil
}

func whyMemory(offer *api.Offer, coming comingFiles) string {
	why := "twice the container's memory, while its processes are restored"
	if envelopes.MemoryCopies(offer) == 1 {
		why = "the container's memory"
	}
	if coming.memory > 0 {
		why += fmt.Sprintf(", and %d MiB in its tmpfs volumes", coming.memory>>20)
	}
	return why
}

// examineOwnRoom looks whether there is room for the execution state beside the container that it
// is made from.
func (a *Agent) examineOwnRoom(offer *api.Offer) []engine.Problem {
	free, err := kernel.MemoryAvailable()
	if err != nil || free >= offer.MemoryBytes {
		return nil
	}
	return []engine.Problem{{
		What: "memory of " + a.self.Name,
		Why: fmt.Sprintf("the container's state takes up to %d MiB while it leaves, %d MiB are available",
			offer.MemoryBytes>>20, free>>20),
		Remedy: "free memory on this node",
	}}
}
