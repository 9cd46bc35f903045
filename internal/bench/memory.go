package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

// memoryImage is the name of the image with this program, for workloads that consist only of memory.
const memoryImage = "bench-memory"

func (w containerWorkload) imageName() string {
	if w.memory != nil {
		return memoryImage
	}
	return w.image
}

// command returns the container's command; empty if the image has it.
func (w containerWorkload) command() []string {
	if w.memory != nil {
		return append([]string{labimage.ProgramPath}, w.memory.Args()...)
	}
	return w.args
}

// buildImage returns the archive of a workload's image.
func (s *suite) buildImage(ctx context.Context, w containerWorkload) (string, error) {
	if w.memory == nil {
		return labimage.Build(ctx, w.image, s.config.ImageCache)
	}
	if s.memoryImage != "" {
		return s.memoryImage, nil
	}
	var err error
	s.memoryImage, err = s.programImage(memoryImage)
	return s.memoryImage, err
}

// programImage makes an image of godwit-lab, which is removed after the benchmark.
func (s *suite) programImage(name string, bulk ...int64) (string, error) {
	path := s.config.Helper
	if path == "" {
		var err error
		if path, err = os.Executable(); err != nil {
			return "", fmt.Errorf("find this program: %w", err)
		}
	}
	if err := os.MkdirAll(s.config.ImageCache, 0o755); err != nil {
		return "", fmt.Errorf("image of this program: %w", err)
	}
	dir, err := os.MkdirTemp(s.config.ImageCache, "bench-")
	if err != nil {
		return "", fmt.Errorf("image of this program: %w", err)
	}
	s.undo = append(s.undo, func() error { return os.RemoveAll(dir) })
	return labimage.OfProgram(name, path, dir, bulk...)
}

// loadImage loads an image into Docker or Podman on a node, and returns its name there.
func loadImage(ctx context.Context, b *bed, node, engine, archive string) (string, error) {
	out, err := b.exec(ctx, node, engine, "load", "--quiet", "--input", archive)
	if err != nil {
		return "", err
	}
	_, name, found := strings.Cut(strings.TrimSpace(out), ": ") // Loaded image: NAME
	if !found {
		return "", fmt.Errorf("%s load says %.200q", engine, out)
	}
	return name, nil
}

// nodeProcess reads a file of /proc about a process, by its PID in the node.
func (b *bed) nodeProcess(node string, pid int, file string) (string, error) {
	path, err := b.path(node, filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// kibibytes finds a line such as "VmRSS:     1234 kB" and returns bytes.
func kibibytes(text, name string) (int64, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == name+":" && fields[2] == "kB" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("no line %s", name)
}

// awaitMemory waits until a process has so much memory.
func (b *bed) awaitMemory(ctx context.Context, node string, pid int, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		status, err := b.nodeProcess(node, pid, "status")
		var resident int64
		if err == nil {
			resident, err = kibibytes(status, "VmRSS")
		}
		if err == nil && resident >= size {
			return nil
		}
		if pauseErr := pause(ctx, 20*time.Millisecond); pauseErr != nil {
			return errors.Join(fmt.Errorf("process %d on node %s has %d of %d bytes: %w", pid, node, resident,
				size, pauseErr), err)
		}
	}
}

// memoryOf returns the memory of a process and its descendants, with proportional shares of shared pages
// (proc_pid_smaps(5), on Pss).
func (b *bed) memoryOf(node string, pid int) (float64, error) {
	family, err := b.family(node, pid)
	if err != nil {
		return 0, err
	}
	sum := int64(0)
	for _, member := range family {
		text, err := b.nodeProcess(node, member, "smaps_rollup")
		var size int64
		if err == nil {
			size, err = kibibytes(text, "Pss")
		}
		if err != nil {
			return 0, fmt.Errorf("memory of process %d on node %s: %w", member, node, err)
		}
		sum += size
	}
	return float64(sum), nil
}

// family returns a process and all its descendants.
func (b *bed) family(node string, pid int) ([]int, error) {
	proc, err := b.path(node, "/proc")
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

// judgeLog reads the workload's output; its last line is the result of its final check.
func judgeLog(log string) error {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	var result pages.Result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &result); err != nil {
		return fmt.Errorf("the workload has not told what it found: %.500q: %w", log, err)
	}
	if result.Bad > 0 || result.Checked < result.Pages {
		return fmt.Errorf("the memory was not what it had to be: %.2000s", log)
	}
	return nil
}
