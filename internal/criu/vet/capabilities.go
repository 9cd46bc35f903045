package vet

import (
	"slices"
	"strings"
)

// capabilities are the names from include/uapi/linux/capability.h, by number.
var capabilities = [...]string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE",
	"NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE",
	"SYS_RAWIO", "SYS_CHROOT",
	"SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME",
	"SYS_TTY_CONFIG", "MKNOD", "LEASE",
	"AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM",
	"BLOCK_SUSPEND", "AUDIT_READ",
	"PERFMON", "BPF", "CHECKPOINT_RESTORE",
}

// AllCapabilities are the capabilities of a container with all rights of root.
const AllCapabilities = ^uint64(0)

// Capabilities returns a set of capabilities by their names, with or without CAP_. It ignores unknown
// names, because no process of this node has those capabilities.
func Capabilities(names []string) (set uint64) {
	for _, name := range names {
		short := strings.TrimPrefix(strings.ToUpper(name), "CAP_")
		if number := slices.Index(capabilities[:], short); number >= 0 {
			set |= 1 << number
		}
	}
	return set
}

// nameCapabilities returns the names of a set.
func nameCapabilities(set uint64) string {
	var names []string
	for number, name := range capabilities {
		if set&(1<<number) != 0 {
			names = append(names, "CAP_"+name)
		}
	}
	if set>>len(capabilities) != 0 {
		names = append(names, "others that have no name")
	}
	return strings.Join(names, ", ")
}

func (a *Agreed) may(name string) bool { return a.Capabilities&Capabilities([]string{name}) != 0 }

// wordsOf returns a set in 32-bit words, as in an image.
func wordsOf(words []uint32) (set uint64) {
	for i, word := range words[:min(len(words), 2)] {
		set |= uint64(word) << (32 * i)
	}
	return set
}
