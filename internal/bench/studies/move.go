package studies

import (
	"context"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/player"
	"github.com/godwit/godwit/internal/migration"
)

// moveBy moves the container to the other node, and returns the measurements and the client's answers from
// a second before the request on.
func moveBy(ctx context.Context, g *services.Container, way string) ([]results.Measurement, [][2]float64,
	error) {
	mode, staged := wayParts(way)
	if err := services.AwaitAnswers(ctx, g.Client); err != nil {
		return nil, nil, err
	}
	var measured []results.Measurement
	if staged {
		took, err := stage(ctx, g)
		if err != nil {
			return nil, nil, err
		}
		measured = append(measured, took...)
	}
	stopped := stopsOf(g.Client)
	requested := time.Now()
	more, err := request(ctx, g, mode)
	if err != nil {
		return nil, nil, err
	}
	measured = append(measured, more...)
	if err := g.AwaitFilled(ctx); err != nil {
		return nil, nil, err
	}
	if err := services.AwaitAnswers(ctx, g.Client); err != nil {
		return nil, nil, err
	}
	measured = append(measured, results.Measurement{results.Gap, g.Client.Answers().Gap(requested).Seconds()})
	if _, plays := g.Client.(*player.Player); plays {
		measured = append(measured,
			results.Measurement{metricStill, stopsOf(g.Client).Seconds - stopped.Seconds})
	}
	return measured, points(g.Client, requested), nil
}

// stopsOf returns how often a film stood still, if the client plays one.
func stopsOf(c services.Client) player.Stops {
	if p, plays := c.(*player.Player); plays {
		return p.Stops()
	}
	return player.Stops{}
}

func points(c services.Client, requested time.Time) [][2]float64 {
	all := [][2]float64{}
	for _, one := range c.Answers().Since(requested.Add(-time.Second)) {
		all = append(all, [2]float64{one.At.Sub(requested).Seconds(), one.At.Sub(one.Asked).Seconds()})
	}
	return all
}

// request moves the container to the other node.
func request(ctx context.Context, g *services.Container, mode migration.Mode) ([]results.Measurement, error) {
	var report migration.Report
	command := []string{"migrate", g.Container(), testbed.Other(g.At), "--json", "--mode"}
	switch mode {
	case modeStopped:
		command = append(command, string(migration.Restart), "--checkpoints", "0")
	default:
		command = append(command, string(mode))
	}
	sent, err := g.Bed.Counted(func() error { return g.Ask(ctx, &report, command...) })
	if err != nil {
		return nil, err
	}
	g.At = report.Target
	b := report.Bytes
	measured := append(moves.FromReport(report), moves.FromPush(report)...)
	for i := range measured {
		if m := &measured[i]; m.Metric == results.Sent {
			m.Value += float64(b.FilesPrecopy + b.Layers) // of files, it has the bytes sent in the freeze
		}
	}
	measured = append(measured, moves.PhasesOf(report, false, metricStep)...)
	return append(measured,
		results.Measurement{results.Link, sent}, results.Measurement{results.Layers, float64(b.Layers)},
		results.Measurement{results.FreezeBytes, float64(b.MemoryFinal + b.FilesFinal)},
	), nil
}

// modeStopped is the mode restart with nothing copied before the container stops.
const modeStopped migration.Mode = "restart 0"

// stage copies the container's memory to the other node before the request to move.
func stage(ctx context.Context, g *services.Container) ([]results.Measurement, error) {
	began := time.Now()
	sent, err := g.Bed.Counted(func() error {
		_, err := g.Bed.Exec(ctx, g.At, testbed.Program, "stage", g.Container(), testbed.Other(g.At))
		return err
	})
	return []results.Measurement{{metricStage, time.Since(began).Seconds()}, {metricStageBytes, sent}}, err
}

// forgetNamed removes an image from a node that may have it.
func forgetNamed(ctx context.Context, b *testbed.Bed, node, name string) error {
	out, err := b.Exec(ctx, node, testbed.Program, "image", "ls")
	if err != nil || !strings.Contains(out, "localhost/"+name+":") {
		return err
	}
	_, err = b.Exec(ctx, node, testbed.Program, "image", "rm", name)
	return err
}
