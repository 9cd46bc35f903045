// Package labtest runs the tests of a package in a shared lab: making a lab takes longer than most tests.
package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/lab"
)

// upTimeout bounds the building of programs and the start of the lab.
const upTimeout = 6 * time.Minute

// Directory is where tests put files for the nodes of a lab, whose /tmp is private.
const Directory = "/var/tmp"

// World is a lab with two nodes, a and b, or more, and a directory on the machine for built programs.
type World struct {
	Name string
	Size int // number of nodes; 0: two
	// of every agent, beside those for deliberate faults
	AgentArgs []string
	// builds the program godwit, and other files that are needed
	Build     func(ctx context.Context, directory string) error
	Up        func(ctx context.Context, up *lab.Lab, directory string) error
	Left      func() []string // returns leftovers of the tests; nil: not checked
	directory string
	lab       *lab.Lab
	down      sync.Once
	downErr   error
}

// Run makes the world, runs the tests, and removes it, even when it is told to end.
func (w *World) Run(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	over := make(chan struct{})
	defer stop()
	defer close(over)
	fail := func(err error) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", w.Name, err)
		code = 1
	}
	defer func() {
		if err := w.takeDown(); err != nil {
			fail(err)
		}
	}()
	if err := w.bringUp(ctx); err != nil {
		fail(err)
		return code
	}
	go func() {
		select {
		case <-over:
		case <-ctx.Done(): // the tests do not know the context
			fail(errors.Join(errors.New("told to end"), w.takeDown()))
			os.Exit(1)
		}
	}()
	code = m.Run()
	if w.Left != nil {
		for _, left := range w.Left() {
			fail(fmt.Errorf("left over: %s", left))
		}
	}
	if code != 0 {
		w.showLogs()
	}
	return code
}

func (w *World) bringUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	err := w.removeStale()
	if err != nil {
		return err
	}
	if w.directory, err = os.MkdirTemp(Directory, w.directoryPrefix()+strconv.Itoa(os.Getpid())+
		"-"); err != nil {
		return err
	}
	if err := w.Build(ctx, w.directory); err != nil {
		return err
	}
	w.lab, err = lab.Up(ctx, lab.Config{
		Name: w.labPrefix() + strconv.Itoa(os.Getpid()), Nodes: len(w.nodes()), NoCheck: true,
		Program:   filepath.Join(w.directory, "godwit"),
		Link:      lab.Link{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond},
		AgentArgs: append([]string{"--faults"}, w.AgentArgs...),
	})
	if err != nil {
		return err
	}
	return w.Up(ctx, w.lab, w.directory)
}

// Nodes of a lab of two.
func Nodes() []string { return []string{"a", "b"} }

func (w *World) nodes() []string {
	names := Nodes()
	for name := 'c'; len(names) < w.Size; name++ {
		names = append(names, string(name))
	}
	return names
}

// These and the PID of this process make up names.
func (w *World) labPrefix() string       { return w.Name + "-" }
func (w *World) directoryPrefix() string { return "godwit-" + w.Name + "-" }

// removeStale removes the labs and directories of killed runs.
func (w *World) removeStale() error {
	names, err := lab.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		if dead(name, w.labPrefix()) {
			if err := lab.Down(name); err != nil {
				return err
			}
		}
	}
	directories, err := filepath.Glob(filepath.Join(Directory, w.directoryPrefix()+"*"))
	for _, directory := range directories {
		name, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(directory), w.directoryPrefix()), "-")
		if dead(name, "") {
			err = errors.Join(err, os.RemoveAll(directory))
		}
	}
	return err
}

// dead reports whether a name has this prefix and belongs to a process that no longer exists.
func dead(name, prefix string) bool {
	pid, err := strconv.Atoi(strings.TrimPrefix(name, prefix))
	return strings.HasPrefix(name, prefix) && err == nil && unix.Kill(pid, 0) != nil
}

func (w *World) takeDown() error {
	w.down.Do(func() {
		if w.lab != nil {
			w.downErr = w.lab.Down()
		}
		if w.directory != "" {
			w.downErr = errors.Join(w.downErr, os.RemoveAll(w.directory))
		}
	})
	return w.downErr
}

// showLogs prints the ends of the agents' logs, which disappear with the lab, and the agents' crashes.
func (w *World) showLogs() {
	for _, node := range w.nodes() {
		out, err := exec.Command("tail", "-n", "30", w.lab.AgentLog(node)).CombinedOutput()
		crash, _ := exec.Command("grep", "-n", "-m", "3", "-A", "30", "-E", "^(SIG|panic:|fatal error:)",
			w.lab.AgentLog(node)).Output()
		fmt.Fprintf(os.Stderr, "%s: end of the log of agent %s (%v):\n%s\n%s\n", w.Name, node, err, crash,
			out)
	}
}

// Within polls a condition until it is true, or returns false after a limit. It polls less often as time
// passes: a poll is often a command in a node, which takes processor time from the awaited process.
func Within(limit time.Duration, condition func() bool) bool {
	began := time.Now()
	for !condition() {
		waited := time.Since(began)
		if waited > limit {
			return false
		}
		time.Sleep(min(max(waited/10, 10*time.Millisecond), 200*time.Millisecond))
	}
	return true
}

// GoBuild builds a program from the current sources, so that no old binary is tested by accident.
func GoBuild(ctx context.Context, to, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o",
		to, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, out)
	}
	return nil
}

// Packages of the programs: Program and Controller are tested; Helper is godwit-lab.
const (
	Program    = "github.com/godwit/godwit/cmd/godwit"
	Controller = "github.com/godwit/godwit/cmd/godwit-controller"
	Helper     = "github.com/godwit/godwit/cmd/godwit-lab"
)
