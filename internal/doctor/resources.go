package doctor

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Below these a node is of little use. The needs of a particular container are checked when it moves.
const (
	leastMemoryBytes = 256 << 20
	leastDiskBytes   = 1 << 30
)

func resourceChecks() []check {
	return []check{
		{
			name: "/run in memory", level: Recommended,
			lost: "CRIU probes the kernel anew each time, and a container's memory may go to a disk " +
				"while it moves",
			advice: Advice{General: "mount -t tmpfs tmpfs /run (systemd does it)"},
			look: func(_ context.Context, m machine) finding {
				stat, err := m.fileSystem("/run")
				switch {
				case err != nil:
					return unknown(err)
				case stat.Type != unix.TMPFS_MAGIC:
					return missing("it is not a tmpfs")
				}
				return found("", "")
			},
		},
		{
			name: "memory", level: Recommended,
			lost:   "only tiny containers fit, and their memory is in memory twice while they move",
			advice: Advice{General: "free memory, or add some"},
			look: func(_ context.Context, m machine) finding {
				available, err := m.memoryAvailable()
				return enough(available, leastMemoryBytes, "available", err)
			},
		},
		{
			name: "disk", level: Recommended,
			lost:   "there is no room for images and volumes",
			advice: Advice{General: "free space, or choose another state directory by --state"},
			look: func(_ context.Context, m machine) finding {
				stat, err := m.fileSystem(m.state)
				return enough(int64(stat.Bavail)*int64(stat.Bsize), leastDiskBytes, "free in "+m.state, err)
			},
		},
	}
}

func enough(has, needs int64, where string, err error) finding {
	const mib = 1 << 20
	switch {
	case err != nil:
		return unknown(err)
	case has < needs:
		return missing(fmt.Sprintf("%d MiB %s, at least %d MiB are asked for", has/mib, where, needs/mib))
	}
	return found("", fmt.Sprintf("%d MiB %s", has/mib, where))
}
