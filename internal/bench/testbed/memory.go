package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// nodeProcess reads a file of /proc about a process, by its PID in the node.
func (b *Bed) nodeProcess(node string, pid int, file string) (string, error) {
	path, err := b.Path(node, filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// Kibibytes finds a line such as "VmRSS:     1234 kB" and returns bytes.
func Kibibytes(text, name string) (int64, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == name+":" && fields[2] == "kB" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("no line %s", name)
}

// AwaitMemory waits until a process has so much memory.
func (b *Bed) AwaitMemory(ctx context.Context, node string, pid int, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		status, err := b.nodeProcess(node, pid, "status")
		var resident int64
		if err == nil {
			resident, err = Kibibytes(status, "VmRSS")
		}
		if err == nil && resident >= size {
			return nil
		}
		if pauseErr := Pause(ctx, 20*time.Millisecond); pauseErr != nil {
			return errors.Join(fmt.Errorf("process %d on node %s has %d of %d bytes: %w", pid, node, resident,
				size, pauseErr), err)
		}
	}
}

// MemoryOf returns the memory of a process and its descendants, with proportional shares of shared pages
// (proc_pid_smaps(5), on Pss).
func (b *Bed) MemoryOf(node string, pid int) (float64, error) {
	family, err := b.family(node, pid)
	if err != nil {
		return 0, err
	}
	sum := int64(0)
	for _, member := range family {
		text, err := b.nodeProcess(node, member, "smaps_rollup")
		var size int64
		if err == nil {
			size, err = Kibibytes(text, "Pss")
		}
		if err != nil {
			return 0, fmt.Errorf("memory of process %d on node %s: %w", member, node, err)
		}
		sum += size
	}
	return float64(sum), nil
}

// family returns a process and all its descendants.
func (b *Bed) family(node string, pid int) ([]int, error) {
	proc, err := b.Path(node, "/proc")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		status, err := b.nodeProcess(node, child, "status")
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(status) {
			if parent, is := strings.CutPrefix(line, "PPid:"); is {
				number, _ := strconv.Atoi(strings.TrimSpace(parent))
				children[number] = append(children[number], child)
			}
		}
	}
	family := []int{pid}
	for i := 0; i < len(family); i++ {
		family = slices.Concat(family, children[family[i]])
	}
	return family, nil
}
