package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

// godwitWay is Godwit as users have it: the program in the nodes of the lab.
type godwitWay struct {
	bed      *testbed.Bed
	mode     migration.Mode
	workload containerWorkload
	archive  string // the image
	at       string
	memory   float64      // of the processes before the first move
	users    *redisClient // of a Redis
	// hasClient means that the machine of a program's client was made.
	hasClient bool
}

func newGodwitWay(b *testbed.Bed, mode migration.Mode, w containerWorkload, archive string) *godwitWay {
	return &godwitWay{bed: b, mode: mode, workload: w, archive: archive, at: testbed.Nodes[0]}
}

func (g *godwitWay) name() string { return "godwit " + string(g.mode) }

func (g *godwitWay) container() string { return "bench-" + string(g.mode) }

func (g *godwitWay) clientMachine() string { return "c-" + string(g.mode) }

func (g *godwitWay) start(ctx context.Context) error {
	for _, node := range testbed.Nodes { // both have the image, as for the other ways
		if _, err := g.bed.Exec(ctx, node, testbed.Program, "image", "load", g.archive); err != nil {
			return err
		}
	}
	if err := g.run(ctx); err != nil {
		return err
	}
	container, err := g.inspect(ctx)
	if err != nil {
		return err
	}
	if g.workload.memory != nil {
		return g.bed.AwaitMemory(ctx, g.at, container.PID, g.workload.memory.Size)
	}
	if g.workload.port == 0 {
		return nil
	}
	g.users, err = newRedisClient(ctx, g.bed, g.clientMachine(),
		netip.AddrPortFrom(container.Definition.Network.Address, redisPort).String())
	return err
}

// run makes the container.
func (g *godwitWay) run(ctx context.Context, flags ...string) error {
	run := append([]string{testbed.Program, "run", "--detach", "--name", g.container()}, flags...)
	for _, variable := range g.workload.env {
		run = append(run, "--env", variable)
	}
	run = append(append(run, g.workload.imageName()), g.workload.command()...)
	_, err := g.bed.Exec(ctx, g.at, run...)
	return err
}

// inspect returns Godwit's description of the container.
func (g *godwitWay) inspect(ctx context.Context) (engine.Container, error) {
	var container engine.Container
	err := g.ask(ctx, &container, "inspect", g.container())
	return container, err
}

// ask runs Godwit on the container's node and parses its JSON output.
func (g *godwitWay) ask(ctx context.Context, answer any, args ...string) error {
	out, err := g.bed.Exec(ctx, g.at, append([]string{testbed.Program}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), answer)
	}
	if err != nil {
		return fmt.Errorf("godwit %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (g *godwitWay) move(ctx context.Context) ([]results.Measurement, error) {
	g.users.forget()
	if g.memory == 0 {
		used, err := g.memoryUsed(ctx)
		if err != nil {
			return nil, err
		}
		g.memory = used
	}
	var report migration.Report
	if err := g.ask(ctx, &report, "migrate", g.container(), testbed.Other(g.at), "--mode", string(g.mode),
		"--json"); err != nil {
		return nil, err
	}
	g.at = report.Target
	measured := fromReport(report)
	if err := g.awaitFilled(ctx); err != nil {
		return nil, err
	}
	after, err := g.memoryUsed(ctx)
	if err != nil {
		return nil, err
	}
	if after > 0 {
		measured = append(measured, results.Measurement{results.Memory, g.memory},
			results.Measurement{results.Growth, after / g.memory})
	}
	waited, err := g.users.waited(ctx, report.DowntimeSeconds)
	return append(measured, waited...), err
}

// memoryUsed returns the memory of the container's processes, if that is the point of the workload. Shared
// memory is in no process's share until it is touched.
func (g *godwitWay) memoryUsed(ctx context.Context) (float64, error) {
	if g.workload.memory == nil || g.workload.memory.Kind == pages.Shared {
		return 0, nil
	}
	container, err := g.inspect(ctx)
	if err != nil {
		return 0, err
	}
	return g.bed.MemoryOf(g.at, container.PID)
}

// awaitFilled waits until all of the container's memory is there: before that, the container cannot be
// moved again.
func (g *godwitWay) awaitFilled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		var plan migration.Plan
		err := g.ask(ctx, &plan, "migrate", g.container(), testbed.Other(g.at), "--dry-run", "--json",
			"--mode",
			string(migration.PreCopy))
		if err == nil && plan.Possible {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(fmt.Errorf("the container cannot be moved on: %+v", plan.Problems),
				err, ctx.Err())
		}
		if err := testbed.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// fromReport returns a report's measurements. The phases are those of the downtime, and add up to it.
func fromReport(r migration.Report) []results.Measurement {
	b := r.Bytes
	sent := b.MemoryPrecopy + b.MemoryFinal + b.MemoryFaulted + b.MemoryPushed + b.FilesFinal + b.Metadata
	rounds := 0
	for _, round := range r.Rounds {
		if !round.Final {
			rounds++
		}
	}
	measured := []results.Measurement{
		{results.Downtime, r.DowntimeSeconds}, {results.Handoff, r.HandoffSeconds},
		{results.Total, r.TotalSeconds},
		{results.Sent, float64(sent)}, {results.Frozen, float64(r.Bytes.MemoryFinal)},
		{results.Uncompressed, float64(r.Bytes.Uncompressed)},
		{results.Raw, float64(r.Bytes.MemoryRaw)},
		{results.Rounds, float64(rounds)},
	}
	return append(measured, phasesOf(r, true, results.Phase)...)
}

// phasesOf adds up the phases of the downtime, or all others, by their names.
func phasesOf(r migration.Report, downtime bool, metric string) []results.Measurement {
	var measured []results.Measurement
	for _, phase := range r.Phases {
		if phase.Downtime != downtime {
			continue
		}
		name := fmt.Sprintf(metric, strings.ReplaceAll(phase.Name, "-", "_"))
		i := slices.IndexFunc(measured, func(m results.Measurement) bool { return m.Metric == name })
		if i < 0 {
			i = len(measured)
			measured = append(measured, results.Measurement{Metric: name})
		}
		measured[i].Value += phase.Seconds
	}
	return measured
}

// stop also makes sure that nothing was lost: a quick switchover that loses requests or memory does not
// count.
func (g *godwitWay) stop(ctx context.Context) error {
	return errors.Join(g.endClient(), g.removeContainer(ctx))
}

func (g *godwitWay) endClient() error {
	users := g.users
	g.users = nil
	return users.end()
}

func (g *godwitWay) removeContainer(ctx context.Context) error {
	out, err := g.bed.Exec(ctx, g.at, testbed.Program, "ps", "--all")
	if err != nil || !strings.Contains(out, g.container()) {
		return err
	}
	if g.workload.memory != nil {
		err = g.verify(ctx)
	}
	_, removeErr := g.bed.Exec(ctx, g.at, testbed.Program, "rm", "--force", g.container())
	return errors.Join(err, removeErr)
}

// verify makes the workload check all of its memory, and reads the result.
func (g *godwitWay) verify(ctx context.Context) error {
	if _, err := g.bed.Exec(ctx, g.at, testbed.Program, "stop", "--time", "60s", g.container()); err != nil {
		return err
	}
	log, err := g.bed.Exec(ctx, g.at, testbed.Program, "logs", g.container())
	if err != nil {
		return err
	}
	return judgeLog(log)
}
