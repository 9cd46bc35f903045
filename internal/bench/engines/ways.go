package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/migration"
)

// outside is a container of another engine.
type outside struct {
	name      string
	image     string // the engine's name for it
	args      []string
	port      int  // that it listens on; 0: none
	connected bool // to the engine's network; otherwise it has none, and only the engine's part is measured
}

// outsideEngine is an engine besides Godwit's on a node, used through its command line.
type outsideEngine interface {
	name() string
	bringUp(ctx context.Context, node string) error
	// connects reports whether its containers keep their connections when they move.
	connects() bool
	// load loads an image into the engine, and prepares the engine for such a container.
	load(ctx context.Context, node, archive string, c outside) (image string, err error)
	run(ctx context.Context, node string, c outside) error
	// pid returns the PID of its first process, in the node.
	pid(ctx context.Context, node string, c outside) (int, error)
	// server returns the address of a connected container, as long as it has not moved from there.
	server(node string, c outside) (address string, err error)
	// remove removes a container at once.
	remove(ctx context.Context, node string, c outside) error
	// checkpointed moves a container in the engine's own way, and returns the times of its parts.
	checkpointed(ctx context.Context, from string, c outside) ([]results.Measurement, error)
}

// engineWay is the common part of ways that move containers of other engines.
type engineWay struct {
	bed       *testbed.Bed
	engine    outsideEngine
	title     string
	container outside
	archive   string // the image
	at        string
	users     *moves.RedisClient
	filled    bool // its Redis has its data
}

func (e *engineWay) Name() string { return e.title }

func (e *engineWay) Start(ctx context.Context) error {
	for _, node := range testbed.Nodes {
		var err error
		if e.container.image, err = e.engine.load(ctx, node, e.archive, e.container); err != nil {
			return err
		}
	}
	if err := e.engine.run(ctx, e.at, e.container); err != nil || e.container.port == 0 {
		return err
	}
	if e.container.connected {
		address, err := e.engine.server(e.at, e.container)
		if err == nil {
			e.users, err = moves.NewRedisClient(ctx, e.bed, "c-"+e.engine.name(), address)
		}
		e.filled = err == nil
		return err
	}
	err := e.within(ctx, func(r *workload.RedisCounter) error { return r.Fill(moves.RedisDataBytes) })
	e.filled = err == nil
	return err
}

// within connects to a Redis from within its container.
func (e *engineWay) within(ctx context.Context, do func(*workload.RedisCounter) error) error {
	pid, err := e.engine.pid(ctx, e.at, e.container)
	if err != nil {
		return err
	}
	conn, err := e.bed.DialBeside(ctx, e.at, pid, e.container.port)
	if err != nil {
		return fmt.Errorf("redis of %s: %w", e.container.name, err)
	}
	return errors.Join(do(workload.NewRedisCounter(conn)), conn.Close())
}

// Stop also checks that a Redis still has its data.
func (e *engineWay) Stop(ctx context.Context) error {
	failed := e.users.End()
	if e.filled {
		failed = errors.Join(failed,
			e.within(ctx, func(r *workload.RedisCounter) error { return r.Verify(moves.RedisDataBytes) }))
	}
	failed = errors.Join(failed, e.engine.remove(ctx, e.at, e.container))
	_ = e.engine.remove(ctx, testbed.Other(e.at), e.container) // left if an engine's own way failed
	return failed
}

// movedWay is Godwit's way.
type movedWay struct{ engineWay }

func (m *movedWay) Move(ctx context.Context) ([]results.Measurement, error) {
	m.users.Forget()
	out, err := m.bed.Exec(ctx, m.at, testbed.Program, "migrate", m.engine.name()+":"+m.container.name,
		testbed.Other(m.at),
		"--mode", string(migration.PreCopy), "--wait", "--json")
	if err != nil {
		return nil, err
	}
	var report migration.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, fmt.Errorf("report of the migration: %w", err)
	}
	m.at = report.Target
	create := 0.0 // the step begins while the source stages, and continues after that
	for _, phase := range report.Phases {
		if phase.Name == string(migration.StepArrive) {
			create += phase.Seconds
		}
	}
	waited, err := m.users.Waited(ctx, report.DowntimeSeconds)
	return append(append(moves.FromReport(report), results.Measurement{metricCreate, create}), waited...), err
}

// checkpointWay is the engine's own way.
type checkpointWay struct{ engineWay }

func (c *checkpointWay) Move(ctx context.Context) ([]results.Measurement, error) {
	measured, err := c.engine.checkpointed(ctx, c.at, c.container)
	if err == nil {
		c.at = testbed.Other(c.at)
	}
	return measured, err
}

// timeAll runs commands one after the other and returns the sum of their times.
func timeAll(ctx context.Context, b *testbed.Bed, node string, commands ...[]string) (float64, error) {
	all := 0.0
	for _, command := range commands {
		took, err := b.Time(ctx, node, command...)
		if err != nil {
			return 0, err
		}
		all += took
	}
	return all, nil
}
