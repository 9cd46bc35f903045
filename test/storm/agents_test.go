package storm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// callTimeout bounds a call to an agent that does not answer.
const callTimeout = 30 * time.Second

var clients sync.Map // of agents, by node

// agentOf returns a client of a node's agent that survives the agent's restarts.
func agentOf(node string) (api.AgentClient, error) {
	if known, is := clients.Load(node); is {
		return known.(api.AgentClient), nil
	}
	directory, err := runDir(node)
	if err != nil {
		return nil, err
	}
	quick := grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2,
			MaxDelay: 50 * time.Millisecond},
		MinConnectTimeout: time.Second,
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(directory, "agent.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(quick))
	if err != nil {
		return nil, err
	}
	made, _ := clients.LoadOrStore(node, api.NewAgentClient(conn))
	return made.(api.AgentClient), nil
}

// runDir returns the run directory of a node's agent, as a path for this process.
func runDir(node string) (string, error) {
	root, err := world.lab.Root(node)
	return filepath.Join(root, "run/godwit"), err
}

// containers lists a node's containers.
func containers(ctx context.Context, node string) ([]engine.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	of, err := agentOf(node)
	if err != nil {
		return nil, err
	}
	reply, err := of.List(ctx, &api.ListRequest{All: true})
	if err != nil {
		return nil, err
	}
	list := make([]engine.Container, len(reply.ContainersJson))
	for i, document := range reply.ContainersJson {
		if err := json.Unmarshal(document, &list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// reports returns the reports of a node's migrations, by id.
func reports(ctx context.Context, node string) (map[string]migration.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	of, err := agentOf(node)
	if err != nil {
		return nil, err
	}
	stream, err := of.Migrations(ctx, &api.MigrationsRequest{})
	if err != nil {
		return nil, err
	}
	all := map[string]migration.Report{}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		var r migration.Report
		if err := json.Unmarshal(reply.ReportJson, &r); err != nil {
			return nil, err
		}
		all[r.Migration] = r
	}
}

// watch waits for the end of a migration on a node.
func watch(ctx context.Context, node, id string) (r migration.Report, err error) {
	of, err := agentOf(node)
	if err != nil {
		return r, err
	}
	stream, err := of.Watch(ctx, &api.MigrationRequest{Migration: id})
	if err != nil {
		return r, err
	}
	for {
		update, err := stream.Recv()
		if err != nil {
			return r, err
		}
		if len(update.ReportJson) > 0 {
			return r, json.Unmarshal(update.ReportJson, &r)
		}
	}
}

// stepOf returns a migration's current step on a node; empty: it has ended.
func stepOf(ctx context.Context, node, id string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel() // also of the stream
	of, err := agentOf(node)
	if err != nil {
		return "", err
	}
	stream, err := of.Watch(ctx, &api.MigrationRequest{Migration: id})
	if err != nil {
		return "", err
	}
	update, err := stream.Recv()
	if err != nil || len(update.ProgressJson) == 0 {
		return "", err
	}
	var p migration.Progress
	err = json.Unmarshal(update.ProgressJson, &p)
	return p.Phase, err
}

// open reports whether a migration has not ended on a node.
func open(r migration.Report) bool {
	return r.Result == migration.ResultRuns || r.Result == migration.ResultDoubt
}

// nodeKeeper acts like systemd: it restarts an agent that has ended.
type nodeKeeper struct {
	node  string
	mu    sync.Mutex // held while an agent is ended or started
	delay func() time.Duration
	err   error // of the last start

	daemon sync.Mutex // held while the node's containerd is ended
}

// keep restarts the agent whenever it has ended, until ctx ends.
func (k *nodeKeeper) keep(ctx context.Context) {
	pid := 0
	for ctx.Err() == nil {
		if pid == 0 || unix.Kill(pid, 0) != nil { // a search for an agent reads all processes
			var err error
			if pid, err = world.lab.AgentPID(k.node); err == nil && pid == 0 {
				wait(ctx, k.delay())
				k.revive(ctx)
			}
		}
		wait(ctx, 50*time.Millisecond)
	}
}

func (k *nodeKeeper) revive(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pid, err := world.lab.AgentPID(k.node); err != nil || pid != 0 || ctx.Err() != nil {
		return
	}
	k.err = world.lab.StartAgent(ctx, k.node, append([]string{"--faults"}, agentArgs...)...)
}

// failure returns the error of the last start.
func (k *nodeKeeper) failure() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// signal kills the agent, or tells it to end, if it runs.
func (k *nodeKeeper) signal(ctx context.Context, do func(context.Context, string) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if pid, err := world.lab.AgentPID(k.node); err != nil || pid == 0 {
		return err
	}
	err := do(ctx, k.node)
	if pid, pidErr := world.lab.AgentPID(k.node); pidErr == nil && pid == 0 {
		return nil // a step may have just killed it
	}
	return err
}

// wait waits for so long, or until ctx ends.
func wait(ctx context.Context, long time.Duration) {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// clearFaults removes all faults of a node, and ends pauses.
func clearFaults(node string) error {
	directory, err := runDir(node)
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(directory, "faults"))
}

// patience bounds all waits. The machine may be busy with other tests.
const patience = 4 * time.Minute

func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	if err := within(patience, condition); err != nil {
		t.Fatalf("waited too long for %s: %v", what, err)
	}
}

// within polls a condition, and returns its last error.
func within(limit time.Duration, condition func() error) (err error) {
	if labtest.Within(limit, func() bool { err = condition(); return err == nil }) {
		return nil
	}
	return fmt.Errorf("after %v: %w", limit, err)
}
