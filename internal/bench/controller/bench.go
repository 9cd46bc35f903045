package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/godwit/godwit/internal/wire/pinned"
)

// What is asked.
const (
	askedShare     = 35  // % of a core
	askedMemory    = 1.2 // GB, with all agents
	askedReconnect = 60  // s
	askedIdle      = 80  // MB
	askedProgram   = 50  // MB
	megabyte       = 1e6 // bytes
	gigabyte       = 1e9 // bytes
	perNode        = 10  // containers
	firstPatience  = 20 * time.Minute
)

// Config of a run.
type Config struct {
	Program string // the controller
	Nodes   int
	Quick   bool              // shorter intervals, which say less
	Say     func(line string) // progress
}

// Run measures everything. If something fails, the rows before it are in the result.
func Run(ctx context.Context, config Config) (result Result, err error) {
	decide, idle, measured := 300, 30*time.Second, time.Minute
	if config.Quick {
		decide, idle, measured = 30, 3*time.Second, 10*time.Second
	}
	size, err := os.Stat(config.Program)
	if err != nil {
		return result, fmt.Errorf("the controller: %w", err)
	}
	result.add("size of the program", float64(size.Size())/megabyte, "MB", askedProgram)
	config.Say("measures decisions")
	if err := decisions(ctx, &result, config.Nodes, config.Nodes*perNode, decide); err != nil {
		return result, err
	}
	directory, err := os.MkdirTemp("", "godwit-bench-controller-")
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	b := &bed{config: config, directory: directory, measured: measured}
	if b.address, err = freeAddress(); err != nil {
		return result, err
	}
	if b.process, err = start(ctx, config.Program, directory, b.address); err != nil {
		return result, err
	}
	defer func() {
		if b.process != nil {
			err = errors.Join(err, b.process.stop())
		}
	}()
	if err := b.idle(ctx, &result, idle); err != nil {
		return result, err
	}
	return result, b.agents(ctx, &result)
}

// bed is a controller that is measured.
type bed struct {
	config    Config
	directory string
	address   string
	process   *process
	measured  time.Duration
}

// freeAddress is an address on which nobody listens now.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (b *bed) idle(ctx context.Context, result *Result, wait time.Duration) error {
	b.config.Say("measures the idle controller")
	if err := pause(ctx, wait); err != nil {
		return err
	}
	bytes, err := b.process.memory()
	if err != nil {
		return err
	}
	result.add("memory of an idle controller", bytes/megabyte, "MB", askedIdle)
	return nil
}

// agents measures the controller with all agents, and after a restart.
func (b *bed) agents(ctx context.Context, result *Result) error {
	token, err := b.process.token(ctx, "node", "")
	if err != nil {
		return err
	}
	nodes := b.config.Nodes
	f, err := newFleet(b.address, token.Server, fleetStates(nodes, nodes*perNode))
	if err != nil {
		return err
	}
	b.config.Say(fmt.Sprintf("joins %d simulated nodes", nodes))
	err = f.join(ctx, func(ctx context.Context) (pinned.Token, error) {
		return b.process.token(ctx, "node", "")
	})
	if err != nil {
		return err
	}
	b.config.Say("connects them")
	f.run(ctx)
	defer f.stop()
	if err := f.await(ctx, firstPatience); err != nil {
		return err
	}
	share, err := b.share(ctx)
	if err != nil {
		return err
	}
	bytes, err := b.process.memory()
	if err != nil {
		return err
	}
	with := fmt.Sprintf("%d agents, a heartbeat in %v each: ", nodes, heartbeat)
	result.add(with+"share of a core", share*100, "%", askedShare)
	result.add(with+"memory", bytes/gigabyte, "GB", askedMemory)
	b.config.Say("restarts the controller")
	began := time.Now()
	stopped := b.process
	b.process = nil
	if err := errors.Join(stopped.stop(), f.awaitNone(ctx)); err != nil {
		return err
	}
	if b.process, err = start(ctx, b.config.Program, b.directory, b.address); err != nil {
		return err
	}
	if err := f.await(ctx, firstPatience); err != nil {
		return err
	}
	result.add(with+"all connected again after a restart", time.Since(began).Seconds(), "s", askedReconnect)
	return nil
}

// share is the share of a core that the controller uses, once the agents have come to rest.
func (b *bed) share(ctx context.Context) (float64, error) {
	b.config.Say("measures the controller with its agents")
	if err := pause(ctx, b.measured/2); err != nil {
		return 0, err
	}
	before, err := b.process.cpu()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := pause(ctx, b.measured); err != nil {
		return 0, err
	}
	after, err := b.process.cpu()
	return (after - before).Seconds() / time.Since(began).Seconds(), err
}
