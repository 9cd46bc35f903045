package doctor

// meaning says how much a kernel feature matters, and why.
type meaning struct {
	level  Level
	lost   string
	debian string
}

const newerKernel = "Debian 13's kernel has it; on Debian 12 the kernel of bookworm-backports, on Ubuntu " +
	"24.04 that of " +
	"linux-generic-hwe-24.04"

// meaningOf returns the use of a feature of the package kernel. A feature that is not listed is optional.
func meaningOf(name string) meaning {
	switch name {
	case "checkpoint and restore":
		return meaning{Required, "nothing can be checkpointed or restored", ""}
	case "time namespaces":
		return meaning{Recommended, "clocks of a container jump when it moves: timers fire too early or " +
			"too late", ""}
	case "TCP repair mode":
		return meaning{Required, "established connections break when a container moves", ""}
	case "socket diagnosis for TCP", "socket diagnosis for UDP", "socket diagnosis for unix sockets":
		return meaning{Required, "containers with such sockets cannot be moved", ""}
	case "socket diagnosis for netlink", "socket diagnosis for packet sockets":
		return meaning{Recommended, "containers with such sockets cannot be moved", ""}
	case "pidfd_getfd":
		return meaning{Required, "connections do not survive a migration that fails and is undone", ""}
	case "cgroup freezer":
		return meaning{Required, "a container cannot be stopped at one instant", ""}
	case "cgroup.kill":
		return meaning{Optional, "the source is killed process by process at the end of a migration, " +
			"which takes longer", ""}
	case "overlayfs":
		return meaning{Required, "containers of the embedded engine have no file system", ""}
	case "tmpfs without swap":
		return meaning{Optional, "a container's memory may be swapped to disk while it moves, if the " +
			"machine swaps", newerKernel}
	case "userfaultfd":
		return meaning{Recommended,
			"no pre-copy and no post-copy: memory cannot come before the processes do", ""}
	case "userfaultfd asynchronous write-protection":
		return meaning{Recommended, "pre-copy has to find dirty pages in slower ways", newerKernel}
	case "PAGEMAP_SCAN":
		return meaning{Recommended, "pre-copy has to find dirty pages in slower ways", newerKernel}
	case "soft-dirty":
		return meaning{Optional, "nothing where userfaultfd write-protection works; elsewhere pre-copy " +
			"has to read all memory in each round", ""}
	}
	return meaning{Optional, "what uses it", ""}
}
