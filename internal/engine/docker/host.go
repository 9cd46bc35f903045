package docker

import (
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
)

// hostConfig returns Docker's settings for an arriving container besides the container's own configuration.
// The definition may come from another node, so hostConfig copies only settings that are known to be
// harmless. All others are refused (obstacles) or left to Docker. Docker may restart the container only
// after it has run here.
func hostConfig(from *container.HostConfig, binds []string, mounts []mount.Mount) *container.HostConfig {
	return &container.HostConfig{
		Binds: binds, Mounts: mounts, Runtime: Runtime, Resources: resources(from.Resources),
		LogConfig: from.LogConfig, NetworkMode: from.NetworkMode, PortBindings: from.PortBindings,
		PublishAllPorts: from.PublishAllPorts,
		AutoRemove:      from.AutoRemove, VolumeDriver: from.VolumeDriver, ConsoleSize: from.ConsoleSize,
		CapAdd: from.CapAdd, CapDrop: from.CapDrop, CgroupnsMode: from.CgroupnsMode,
		SecurityOpt: from.SecurityOpt,
		DNS:         from.DNS, DNSOptions: from.DNSOptions, DNSSearch: from.DNSSearch,
		ExtraHosts: from.ExtraHosts, GroupAdd: from.GroupAdd,
		IpcMode: from.IpcMode, OomScoreAdj: from.OomScoreAdj, ReadonlyRootfs: from.ReadonlyRootfs,
		Tmpfs: from.Tmpfs, ShmSize: from.ShmSize, MaskedPaths: from.MaskedPaths,
		ReadonlyPaths: from.ReadonlyPaths, Init: from.Init,
	}
}

func resources(from container.Resources) container.Resources {
	return container.Resources{
		CPUShares: from.CPUShares, Memory: from.Memory, NanoCPUs: from.NanoCPUs,
		BlkioWeight: from.BlkioWeight, BlkioWeightDevice: from.BlkioWeightDevice,
		BlkioDeviceReadBps: from.BlkioDeviceReadBps, BlkioDeviceWriteBps: from.BlkioDeviceWriteBps,
		BlkioDeviceReadIOps: from.BlkioDeviceReadIOps, BlkioDeviceWriteIOps: from.BlkioDeviceWriteIOps,
		CPUPeriod: from.CPUPeriod, CPUQuota: from.CPUQuota, CpusetCpus: from.CpusetCpus,
		CpusetMems:        from.CpusetMems,
		MemoryReservation: from.MemoryReservation, MemorySwap: from.MemorySwap,
		MemorySwappiness: from.MemorySwappiness,
		OomKillDisable:   from.OomKillDisable, PidsLimit: from.PidsLimit, Ulimits: from.Ulimits,
	}
}
