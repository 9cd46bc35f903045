package lxc

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/patience"
)

// toolLimit is how long one of LXC's tools may take to answer.
var toolLimit = patience.Limit{Still: 20 * time.Second, Most: 4 * time.Minute}

// tools are LXC's command line. They remember the first processes of containers.
type tools struct {
	path string // where LXC keeps containers

	mu     sync.Mutex
	firsts map[string]checkpoint.Identity // first processes of containers by name, as far as known
}

func newTools(path string) *tools {
	return &tools{path: path, firsts: map[string]checkpoint.Identity{}}
}

// tool runs one of LXC's tools on a container and returns its output. Its error contains the tool's
// message.
func (t *tools) tool(ctx context.Context, name, container string, args ...string) (string, error) {
	return t.toolWithin(ctx, toolLimit, name, container, args...)
}

func (t *tools) toolWithin(
	ctx context.Context, limit patience.Limit, name, container string, args ...string,
) (string, error) {
	ctx, cancel := limit.For(ctx, name, patience.Programs("lxc-"))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append([]string{"-P", t.path, "-n", container}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s of container %s: %w: %s", name, container, patience.Explain(ctx, err),
			lastLine(stderr.String()))
	}
	return string(out), nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// cause is the first error in a log of LXC, with the output of other programs that LXC quotes. Later errors
// only follow from the first.
func cause(log string) string {
	_, text, found := strings.Cut(log, " ERROR ")
	if !found {
		return lastLine(log)
	}
	first, quoted, _ := strings.Cut(text, "\n")
	words := []string{strings.Join(strings.Fields(first), " ")}
	for line := range strings.Lines(quoted) {
		if strings.HasPrefix(line, "lxc-") {
			break
		}
		words = append(words, strings.TrimSpace(line))
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

// monitors returns the names of containers that have a monitor of LXC, which listens on an abstract socket.
func (t *tools) monitors() (map[string]bool, error) {
	file, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("look for LXC's monitors: %w", err)
	}
	defer file.Close()
	found := map[string]bool{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		_, path, ok := strings.Cut(lines.Text(), "@"+t.path+"/")
		name, isCommand := strings.CutSuffix(path, "/command")
		if ok && isCommand {
			found[name] = true
		}
	}
	return found, lines.Err()
}

// firstProcess asks LXC for the PID of a container's first process; 0 if it does not run.
func (t *tools) firstProcess(ctx context.Context, name string, limit patience.Limit) (int, error) {
	out, err := t.toolWithin(ctx, limit, "lxc-info", name, "-p", "-H")
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(out)
	if text == "" {
		return 0, nil
	}
	pid, err := strconv.Atoi(text)
	if err != nil || pid < 1 {
		return 0, fmt.Errorf("lxc-info says %.40q, want the pid of container %s", text, name)
	}
	return pid, nil
}

// first finds a container's first process, and remembers it.
func (t *tools) first(ctx context.Context, name string, limit patience.Limit) (checkpoint.Identity, error) {
	t.mu.Lock()
	known := t.firsts[name]
	t.mu.Unlock()
	if known.Alive() {
		return known, nil
	}
	pid, err := t.firstProcess(ctx, name, limit)
	if err != nil || pid == 0 {
		return checkpoint.Identity{}, err
	}
	if known, err = checkpoint.Identify(pid); err != nil {
		return checkpoint.Identity{}, nil // it has just ended
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.firsts[name] = known
	return known, nil
}
