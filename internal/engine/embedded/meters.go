package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// meters measures and throttles running containers.
type meters struct {
	catalog *catalog
	paths   paths
}

// CPUTime returns the processor time that a container has used.
func (m *meters) CPUTime(_ context.Context, id string) (time.Duration, error) {
	place, err := m.catalog.find(id)
	if err != nil {
		return 0, err
	}
	group, err := cgroup.Open(place.cgroup())
	if err != nil {
		return 0, fmt.Errorf("processor time of container %.12s: %w", id, err)
	}
	used, err := group.CPUTime()
	return used, checkpoint.Unsupported(err)
}

// Throttle limits a container to this many processors. Its ordinary limit is in its definition, so Throttle
// need not remember it.
func (m *meters) Throttle(_ context.Context, id string, cpus float64) error {
	ctr, err := m.catalog.inspect(id)
	if errors.Is(err, engine.ErrNotFound) && cpus == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	group, err := cgroup.Open(m.paths.of(ctr.Definition.ID).cgroup())
	if err == nil {
		err = checkpoint.Throttle(group, ctr.Definition.Limits.CPUs, cpus)
	}
	if cpus == 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, kernel.ErrUnsupported)) {
		return nil // the container has ended, or could never be throttled
	}
	if err != nil {
		return fmt.Errorf("throttle container %s: %w", ctr.Definition.Name, checkpoint.Unsupported(err))
	}
	return nil
}

// Processes returns all current processes of a container.
func (m *meters) Processes(_ context.Context, id string) ([]int, error) {
	place, err := m.catalog.find(id)
	if err != nil {
		return nil, err
	}
	group, err := cgroup.Open(place.cgroup())
	if err == nil {
		var pids []int
		if pids, err = group.Procs(); err == nil {
			return pids, nil
		}
	}
	return nil, fmt.Errorf("list the processes of container %.12s: %w", id, err)
}

// Ports returns the ports on which a running container listens.
func (m *meters) Ports(_ context.Context, id string) ([]engine.Port, error) {
	ctr, err := m.catalog.running(id)
	if err != nil {
		return nil, err
	}
	ports, err := portsOf(ctr.PID)
	if err != nil {
		return nil, fmt.Errorf("ports of container %s: %w", ctr.Definition.Name, err)
	}
	return ports, nil
}

// Ports in this range are assigned to programs that ask for any port (ip_local_port_range of a new network
// namespace, net/ipv4/af_inet.c), and differ at each start.
const firstEphemeral, lastEphemeral = 32768, 60999

// portsOf lists the listening ports in the network namespace of a process.
func portsOf(pid int) ([]engine.Port, error) {
	open, err := kernel.ReadPorts(pid)
	if err != nil {
		return nil, err
	}
	var ports []engine.Port
	for _, p := range open {
		if p.Number < firstEphemeral || p.Number > lastEphemeral {
			ports = append(ports, engine.Port{Protocol: p.Protocol, Number: p.Number})
		}
	}
	slices.SortFunc(ports, engine.ComparePorts)
	return slices.Compact(ports), nil
}

// Memory reports how much of a running container's memory has been filled.
func (m *meters) Memory(_ context.Context, id string) (memory.FillReport, error) {
	place, err := m.catalog.find(id)
	if err != nil {
		return memory.FillReport{}, err
	}
	report, err := pager.ReadReport(place.memory())
	if err == nil && report.State == memory.FillNone {
		err = durable.Load(place.lost(), &report)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return memory.FillReport{}, fmt.Errorf("look at the memory of container %.12s: %w", id, err)
	}
	return report, nil
}

// RemotePages connects to the pager of a container. It needs only the container's directory.
func (m *meters) RemotePages(ctx context.Context, id string) (memory.RemotePages, error) {
	place, err := m.catalog.find(id)
	if err != nil {
		return nil, err
	}
	return checkpoint.RemotePages(ctx, id, place.remoteSocket())
}
