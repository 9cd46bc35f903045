package oci

import (
	"slices"
	"strings"
)

// harmlessCaps are capabilities that act within a container's own namespaces. With others, such as
// SYS_ADMIN, SYS_MODULE or SYS_RAWIO, a container can get at its node.
var harmlessCaps = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
	"NET_RAW", "SETFCAP", "SETGID", "SETPCAP",
	"SETUID", "SYS_CHROOT", // Docker gives these to any container
	"IPC_LOCK", "IPC_OWNER", "LEASE", "LINUX_IMMUTABLE", "NET_BROADCAST", "SYS_NICE", "SYS_PTRACE",
	"SYS_RESOURCE",
}

// HarmlessCapability reports whether a container with this capability is still kept off its node. NET_ADMIN
// is harmless if the container has a network of its own.
func HarmlessCapability(name string, ownNetwork bool) bool {
	short := strings.TrimPrefix(strings.ToUpper(name), "CAP_")
	return slices.Contains(harmlessCaps, short) || short == "NET_ADMIN" && ownNetwork
}

// What no container of Docker 20.10 may see, or write. Later versions have longer lists.
var (
	MaskedPaths = []string{
		"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug",
		"/proc/scsi", "/sys/firmware",
	}
	ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)
