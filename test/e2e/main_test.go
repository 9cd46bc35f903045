package e2e

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

// upTimeout bounds the building of programs and the start of the lab.
const upTimeout = 6 * time.Minute

// programs is where programs are built: nodes of a lab see it, but have a /tmp of their own.
const programs = "/var/tmp"

// world is what all tests share: it takes longer to make than a test takes, and a container that one test leaves behind
// would be found at the end.
var world struct {
	lab       *lab.Lab
	directory string // of programs and images, on the machine
	before    map[string]view
}

func TestMain(m *testing.M) {
	lab.RunHidden()
	os.Exit(withWorld(m))
}

// withWorld runs the tests in a lab and then looks for what they left in it.
func withWorld(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	defer func() {
		if err := takeDown(); err != nil {
			fail(err)
		}
	}()
	if err := bringUp(ctx); err != nil {
		fail(err)
		return code
	}
	code = m.Run()
	for _, left := range leftInLab(world.before) {
		fail(fmt.Errorf("left over: %s", left))
	}
	if code != 0 {
		showAgentLogs()
	}
	return code
}

func bringUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	var err error
	if world.directory, err = os.MkdirTemp(programs, "godwit-e2e-"); err != nil {
		return err
	}
	if err := buildAll(ctx, world.directory); err != nil {
		return err
	}
	if err := removeStale(); err != nil {
		return err
	}
	world.lab, err = lab.Up(ctx, lab.Config{
		Name: labPrefix + strconv.Itoa(os.Getpid()), Nodes: 2, NoCheck: true, Program: inWorld("godwit"),
		Link:      lab.Link{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond},
		AgentArgs: []string{"--faults"},
	})
	if err != nil {
		return err
	}
	if err := world.lab.Client("client", "a", lab.Link{}); err != nil {
		return err
	}
	for _, node := range nodes() {
		if err := loadImage(ctx, node, inWorld("image.tar")); err != nil {
			return err
		}
	}
	if err := warmUp(ctx); err != nil {
		return err
	}
	world.before, err = viewLab()
	return err
}

// warmUp moves a container there and back, so that what nodes make at their first container and migration, and keep,
// is there before the tests.
func warmUp(ctx context.Context) error {
	for _, step := range [][]string{
		{"a", "run", "-d", "--name", "warm-up", image, "/bin/sleep", "1000"}, {"a", "migrate", "warm-up", "b"},
		{"b", "migrate", "warm-up", "a"}, {"a", "rm", "--force", "warm-up"},
	} {
		if out, err := godwit(ctx, step[0], step[1:]...); err != nil || out.code != 0 {
			return fmt.Errorf("warm up: %v: %w, exit code %d: %s", step, err, out.code, out.stderr)
		}
	}
	return nil
}

// labPrefix and the number of this process make the lab's name.
const labPrefix = "e2e-"

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

func nodes() []string { return []string{"a", "b"} }

// inWorld is the path of a file that the tests have made.
func inWorld(name string) string { return filepath.Join(world.directory, name) }

// loadImage loads an image by the command line. The lab's nodes have directories of their own for temporary
// files, so the archive goes in by standard input.
func loadImage(ctx context.Context, node, path string) error {
	archive, err := os.Open(path)
	if err != nil {
		return err
	}
	defer archive.Close()
	cmd, err := world.lab.Command(ctx, node, "godwit", "image", "load", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load the image on %s: %w: %s", node, err, out)
	}
	return nil
}

// showAgentLogs prints the ends of the agents' logs, which are gone with the lab, and how they crashed if they did.
func showAgentLogs() {
	for _, node := range nodes() {
		out, err := exec.Command("tail", "-n", "30", world.lab.AgentLog(node)).CombinedOutput()
		crash, _ := exec.Command("grep", "-n", "-m", "3", "-A", "30", "-E", "^(SIG|panic:|fatal error:)", world.lab.AgentLog(node)).Output()
		fmt.Fprintf(os.Stderr, "e2e: end of the log of agent %s (%v):\n%s\n%s\n", node, err, crash, out)
	}
}
