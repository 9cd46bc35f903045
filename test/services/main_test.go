package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/hosts"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// clientMachine is the clients' machine. It is equally near to the two nodes between which services move,
// and takes no bandwidth from the link between them.
const clientMachine = "client"

// clientNode is the node next to it.
const clientNode = "c"

// world is shared by the tests.
var world site

// TestMain makes the world: a lab, or, if SERVICES_HOSTS names the suites of two Debian machines, these.
func TestMain(m *testing.M) {
	lab.RunHidden()
	if suites := os.Getenv("SERVICES_HOSTS"); suites != "" {
		code, err := onHosts(m, strings.Fields(suites))
		if err != nil {
			fmt.Fprintln(os.Stderr, "services:", err)
			code = 1
		}
		os.Exit(code)
	}
	shared := labtest.World{Name: "services", Size: 3, Build: build, Up: bringUp}
	os.Exit(shared.Run(m))
}

func build(ctx context.Context, directory string) error {
	// In the main module, with its dependencies.
	return run(ctx, "../..", []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w",
		"-o", filepath.Join(directory, "godwit"), "./cmd/godwit")
}

func bringUp(_ context.Context, up *lab.Lab, _ string) error {
	world = labSite{up}
	return up.Client(clientMachine, clientNode, lab.Link{})
}

// onHosts runs the tests on two Debian machines.
func onHosts(m *testing.M, suites []string) (code int, err error) {
	directory, err := os.MkdirTemp("", "godwit-services-hosts-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pair, err := hosts.Up(ctx, hosts.Config{
		Repository: "../..", Directory: directory, Suites: suites,
		Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, pair.Down()) }()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-over:
		case <-ctx.Done(): // the tests do not know the signal
			err := errors.Join(errors.New("told to end"), pair.Down(), os.RemoveAll(directory))
			fmt.Fprintln(os.Stderr, "services:", err)
			os.Exit(1)
		}
	}()
	world = hostSite{pair}
	return m.Run(), nil
}
