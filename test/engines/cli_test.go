package engines

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// cli is the common part of Docker's and Podman's command lines, and the engine's name.
type cli string

// importImage loads the tests' image into a node's engine.
func (c cli) importImage(ctx context.Context, node string) error {
	archive := filepath.Join(world.directory, "image.tar")
	if _, err := os.Stat(archive); err != nil {
		if err := makeImage(ctx, archive); err != nil {
			return err
		}
	}
	_, err := world.lab.Exec(ctx, node, string(c), "import", archive, image)
	return err
}

// run starts a container on node a like a user, and removes it from any node in the end.
func (c cli) run(t *testing.T, flags []string, script string) (name string) {
	t.Helper()
	_, name, _ = strings.Cut(strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")), "test"+string(c))
	t.Cleanup(func() {
		for _, node := range nodes() {
			// it is on one of them, or on none
			_, _ = world.lab.Exec(context.Background(), node, c.remove(name)...)
		}
	})
	args := append([]string{string(c), "run", "--detach", "--name", name}, flags...)
	in(t, "a", append(args, image, "/bin/sh", "-c", script)...)
	c.counted(t, "a", name, 1)
	return name
}

// remove returns the command that removes a container at once.
func (c cli) remove(name string) []string {
	if c == inPodman { // otherwise it would ask the container to end, and wait
		return []string{"podman", "rm", "--force", "--time=0", name}
	}
	return []string{string(c), "rm", "--force", name}
}

func (c cli) migrate(t *testing.T, name, from, to, mode string) {
	t.Helper()
	in(t, from, "godwit", "migrate", "--mode", mode, string(c)+":"+name, to)
}

// begin begins to move a container from a to b, and returns a channel with the result.
func (c cli) begin(name, mode string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := world.lab.Exec(context.Background(), "a", "godwit", "migrate", "--mode", mode,
			string(c)+":"+name, "b")
		done <- err
	}()
	return done
}

// counted waits until a container has counted beyond a number, checks that it has skipped none, and returns
// its current number.
func (c cli) counted(t *testing.T, node, name string, beyond int) int {
	t.Helper()
	return countedIn(t, name+" on "+node, func() string { return in(t, node, string(c), "logs", name) },
		beyond)
}

// countedIn does the same with a log.
func countedIn(t *testing.T, what string, log func() string, beyond int) int {
	t.Helper()
	last := 0
	eventually(t, fmt.Sprintf("%s counts beyond %d", what, beyond), func() bool {
		last = 0
		for line := range strings.Lines(log()) {
			now, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "tick ")))
			if err != nil || now != last+1 {
				t.Fatalf("after %d its log has %q", last, line)
			}
			last = now
		}
		return last > beyond
	})
	return last
}

// inspected returns a field of the engine's inspection of a container.
func (c cli) inspected(t *testing.T, node, name, field string) string {
	t.Helper()
	return in(t, node, string(c), "inspect", "--format", "{{"+field+"}}", name)
}

// nothing checks that a node has nothing of a container or of its move.
func (c cli) nothing(t *testing.T, node, name string) {
	t.Helper()
	// the source may have given up earlier
	eventually(t, "container "+name+" on "+node+" is gone", func() bool {
		return in(t, node, string(c), "ps", "--all", "--quiet", "--filter", "name=^"+name+"$") == ""
	})
	noRecords(t, node, string(c))
}

// noRecords checks that a node has no records of an engine's moving containers, and no directories of
// arriving ones.
func noRecords(t *testing.T, node, engine string) {
	t.Helper()
	records := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("records on %s: %s", node, records)
		}
	})
	eventually(t, "records of "+engine+" on "+node+" are gone", func() bool {
		records = in(t, node, "sh", "-c", "find /var/lib/godwit/engines/"+engine+
			" /run/godwit/door -type f 2>/dev/null || true")
		return records == ""
	})
}
