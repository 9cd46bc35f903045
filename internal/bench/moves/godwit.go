package moves

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

// Godwit is Godwit as users have it: the program in the nodes of the lab.
type Godwit struct {
	Bed      *testbed.Bed
	Mode     migration.Mode
	Workload Workload
	Archive  string // the image
	At       string
	memory   float64      // of the processes before the first move
	Users    *RedisClient // of a Redis
	// HasClient means that the machine of a program's client was made.
	HasClient bool
}

// NewGodwit returns the way of one mode. archive has the image.
func NewGodwit(b *testbed.Bed, mode migration.Mode, w Workload, archive string) *Godwit {
	return &Godwit{Bed: b, Mode: mode, Workload: w, Archive: archive, At: testbed.Nodes[0]}
}

// Name implements Way.
func (g *Godwit) Name() string { return "godwit " + string(g.Mode) }

// Container is the container's name.
func (g *Godwit) Container() string { return "bench-" + string(g.Mode) }

// ClientMachine is the name of the machine of the container's client.
func (g *Godwit) ClientMachine() string { return "c-" + string(g.Mode) }

// Start implements Way.
func (g *Godwit) Start(ctx context.Context) error {
	for _, node := range testbed.Nodes { // both have the image, as for the other ways
		if _, err := g.Bed.Exec(ctx, node, testbed.Program, "image", "load", g.Archive); err != nil {
			return err
		}
	}
	if err := g.Run(ctx); err != nil {
		return err
	}
	container, err := g.Inspect(ctx)
	if err != nil {
		return err
	}
	if g.Workload.Memory != nil {
		return g.Bed.AwaitMemory(ctx, g.At, container.PID, g.Workload.Memory.Size)
	}
	if g.Workload.Port == 0 {
		return nil
	}
	g.Users, err = NewRedisClient(ctx, g.Bed, g.ClientMachine(),
		netip.AddrPortFrom(container.Definition.Network.Address, RedisPort).String())
	return err
}

// Run makes the container.
func (g *Godwit) Run(ctx context.Context, flags ...string) error {
	run := append([]string{testbed.Program, "run", "--detach", "--name", g.Container()}, flags...)
	for _, variable := range g.Workload.Env {
		run = append(run, "--env", variable)
	}
	run = append(append(run, g.Workload.imageName()), g.Workload.command()...)
	_, err := g.Bed.Exec(ctx, g.At, run...)
	return err
}

// Inspect returns Godwit's description of the container.
func (g *Godwit) Inspect(ctx context.Context) (engine.Container, error) {
	var container engine.Container
	err := g.Ask(ctx, &container, "inspect", g.Container())
	return container, err
}

// Ask runs Godwit on the container's node and parses its JSON output.
func (g *Godwit) Ask(ctx context.Context, answer any, args ...string) error {
	out, err := g.Bed.Exec(ctx, g.At, append([]string{testbed.Program}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), answer)
	}
	if err != nil {
		return fmt.Errorf("godwit %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// Move implements Way.
func (g *Godwit) Move(ctx context.Context) ([]results.Measurement, error) {
	g.Users.Forget()
	if g.memory == 0 {
		used, err := g.memoryUsed(ctx)
		if err != nil {
			return nil, err
		}
		g.memory = used
	}
	var report migration.Report
	if err := g.Ask(ctx, &report, "migrate", g.Container(), testbed.Other(g.At), "--mode", string(g.Mode),
		"--json"); err != nil {
		return nil, err
	}
	g.At = report.Target
	measured := FromReport(report)
	if err := g.AwaitFilled(ctx); err != nil {
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
	waited, err := g.Users.Waited(ctx, report.DowntimeSeconds)
	return append(measured, waited...), err
}

// memoryUsed returns the memory of the container's processes, if that is the point of the workload. Shared
// memory is in no process's share until it is touched.
func (g *Godwit) memoryUsed(ctx context.Context) (float64, error) {
	if g.Workload.Memory == nil || g.Workload.Memory.Kind == pages.Shared {
		return 0, nil
	}
	container, err := g.Inspect(ctx)
	if err != nil {
		return 0, err
	}
	return g.Bed.MemoryOf(g.At, container.PID)
}

// AwaitFilled waits until all of the container's memory is there: before that, the container cannot be
// moved again.
func (g *Godwit) AwaitFilled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		var plan migration.Plan
		err := g.Ask(ctx, &plan, "migrate", g.Container(), testbed.Other(g.At), "--dry-run", "--json",
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

// Stop also makes sure that nothing was lost: a quick switchover that loses requests or memory does not
// count.
func (g *Godwit) Stop(ctx context.Context) error {
	return errors.Join(g.endClient(), g.RemoveContainer(ctx))
}

func (g *Godwit) endClient() error {
	users := g.Users
	g.Users = nil
	return users.End()
}

// RemoveContainer removes the container, if it exists, after it has checked its memory.
func (g *Godwit) RemoveContainer(ctx context.Context) error {
	out, err := g.Bed.Exec(ctx, g.At, testbed.Program, "ps", "--all")
	if err != nil || !strings.Contains(out, g.Container()) {
		return err
	}
	if g.Workload.Memory != nil {
		err = g.verify(ctx)
	}
	_, removeErr := g.Bed.Exec(ctx, g.At, testbed.Program, "rm", "--force", g.Container())
	return errors.Join(err, removeErr)
}

// verify makes the workload check all of its memory, and reads the result.
func (g *Godwit) verify(ctx context.Context) error {
	if _, err := g.Bed.Exec(ctx, g.At, testbed.Program, "stop", "--time", "60s", g.Container()); err != nil {
		return err
	}
	log, err := g.Bed.Exec(ctx, g.At, testbed.Program, "logs", g.Container())
	if err != nil {
		return err
	}
	return judgeLog(log)
}

// judgeLog reads the workload's output; its last line is the result of its final check.
func judgeLog(log string) error {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	var result pages.Result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &result); err != nil {
		return fmt.Errorf("the workload has not told what it found: %.500q: %w", log, err)
	}
	if result.Bad > 0 || result.Checked < result.Pages {
		return fmt.Errorf("the memory was not what it had to be: %.2000s", log)
	}
	return nil
}

// WayModel is the container after which those of other ways are made. It is not moved.
const WayModel migration.Mode = "model"
