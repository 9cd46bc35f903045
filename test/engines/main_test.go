package engines

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/lab"
)

// upTimeout bounds the building of the program and the start of the lab, patience whatever else is waited for.
const (
	upTimeout = 6 * time.Minute
	patience  = 2 * time.Minute
)

// labPrefix and the number of this process make the lab's name.
const labPrefix = "engines-"

// world is what all tests share.
var world struct {
	lab       *lab.Lab
	directory string // of the program and the image, on the machine
}

func TestMain(m *testing.M) {
	lab.RunHidden()
	os.Exit(withWorld(m))
}

func withWorld(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	defer func() {
		if err := takeDown(); err != nil {
			fmt.Fprintln(os.Stderr, "engines:", err)
			code = 1
		}
	}()
	if err := bringUp(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		return 1
	}
	if code = m.Run(); code != 0 {
		showLogs()
	}
	return code
}

func bringUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	var err error
	if world.directory, err = os.MkdirTemp("/var/tmp", "godwit-engines-"); err != nil { // nodes have a /tmp of their own
		return err
	}
	program := filepath.Join(world.directory, "godwit")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "github.com/godwit/godwit/cmd/godwit")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w: %s", err, out)
	}
	if err := removeStale(); err != nil {
		return err
	}
	world.lab, err = lab.Up(ctx, lab.Config{
		Name: labPrefix + strconv.Itoa(os.Getpid()), Nodes: 2, NoCheck: true, Program: program,
		Link:      lab.Link{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond},
		AgentArgs: []string{"--faults"},
	})
	if err != nil {
		return err
	}
	for _, node := range nodes() {
		for _, bring := range []func(context.Context, string) error{bringUpDocker, bringUpPodman} {
			if err := bring(ctx, node); err != nil {
				return err
			}
		}
	}
	return nil
}

func nodes() []string { return []string{"a", "b"} }

// removeStale takes down the labs of runs that were killed.
func removeStale() error {
	names, err := lab.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(strings.TrimPrefix(name, labPrefix))
		if !strings.HasPrefix(name, labPrefix) || err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		if err := lab.Down(name); err != nil {
			return err
		}
	}
	return nil
}

func takeDown() error {
	var err error
	if world.lab != nil {
		err = world.lab.Down()
	}
	if world.directory != "" {
		_ = os.RemoveAll(world.directory)
	}
	return err
}

func showLogs() {
	for _, node := range nodes() {
		out, err := exec.Command("tail", "-n", "30", world.lab.AgentLog(node)).CombinedOutput()
		fmt.Fprintf(os.Stderr, "engines: end of the log of agent %s (%v):\n%s\n", node, err, out)
	}
}

// in runs a command in a node, and fails the test unless it succeeds.
func in(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := world.lab.Exec(t.Context(), node, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// tried runs a command in a node that may fail, and returns what it says then.
func tried(t *testing.T, node string, args ...string) error {
	t.Helper()
	_, err := world.lab.Exec(t.Context(), node, args...)
	return err
}

// eventually polls a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
