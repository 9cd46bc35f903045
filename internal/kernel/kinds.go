package kernel

import (
	"fmt"
	"strconv"
	"strings"
)

// Kinds is a process's resident memory, in bytes, by what happens to it when the process moves.
type Kinds struct {
	Private  uint64 // belongs to no file
	Shared   uint64 // without a file, an n-th of memory that n processes have mapped
	File     uint64 // of mapped files, unchanged from disk
	Changed  uint64 // of mapped files, pages that the process has changed for itself
	Swapped  uint64
	OwnShare uint64 // of Private, an n-th of memory that n processes share copy-on-write
	Mappings int
}

// ReadKinds adds up the memory of a process. The kernel walks all of its page tables, which takes 10 ms per
// GiB. Error: fs.ErrNotExist when the process is gone.
func ReadKinds(pid int) (Kinds, error) {
	table, err := ReadProc(pid, "smaps")
	if err != nil {
		return Kinds{}, fmt.Errorf("add up the memory of process %d: %w", pid, err)
	}
	return parseKinds(table), nil
}

// parseKinds reads /proc/PID/smaps (proc_pid_smaps(5)).
func parseKinds(table string) Kinds {
	var all Kinds
	var m Mapping
	bytes := map[string]uint64{}
	for line := range strings.Lines(table) {
		key, value, _ := strings.Cut(line, ":")
		// a mapping's line contains the device's numbers
		if strings.Contains(key, "-") && strings.Contains(key, " ") {
			all.add(m, bytes)
			clear(bytes)
			// an unreadable mapping counts as nobody's
			m, _ = parseMapping([]byte(strings.TrimSuffix(line, "\n")))
			continue
		}
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		if kilobytes, err := strconv.ParseUint(number, 10, 54); err == nil {
			bytes[key] = kilobytes << 10
		}
	}
	all.add(m, bytes)
	return all
}

// add adds one mapping.
func (k *Kinds) add(m Mapping, bytes map[string]uint64) {
	if m.End == 0 {
		return
	}
	k.Mappings++
	k.Swapped += bytes["Swap"]
	switch _, anonymous, memfd := SharedName(m.Name); {
	case m.Shared && (anonymous || memfd || strings.HasPrefix(m.Name, "/SYSV")):
		k.Shared += bytes["Pss"]
	case m.File:
		k.Changed += bytes["Anonymous"]
		k.File += bytes["Rss"] - min(bytes["Rss"], bytes["Anonymous"])
	default:
		k.Private += bytes["Anonymous"] + bytes["Swap"]
		k.OwnShare += min(bytes["Pss"]+bytes["SwapPss"], bytes["Anonymous"]+bytes["Swap"])
	}
}

// Plus adds the memory of two processes.
func (k Kinds) Plus(other Kinds) Kinds {
	return Kinds{
		Private: k.Private + other.Private, Shared: k.Shared + other.Shared, File: k.File + other.File,
		Changed: k.Changed + other.Changed,
		Swapped: k.Swapped + other.Swapped, OwnShare: k.OwnShare + other.OwnShare,
		Mappings: k.Mappings + other.Mappings,
	}
}
