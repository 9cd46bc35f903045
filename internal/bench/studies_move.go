package bench

import (
	"context"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/migration"
)

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
