package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload/tree"
	"github.com/godwit/godwit/internal/migration"
)

const (
	filesVolume = "bench-files"
)

// godwitFiles is Godwit with a container whose files are in a volume.
type godwitFiles struct {
	*moves.Godwit
	what    copying
	flags   []string // of the migration
	address string
	before  tree.Result // the keeper's report before the migration, which must not undo it
}

func newGodwitFiles(b *testbed.Bed, mode migration.Mode, c copying, archive string,
	flags ...string) *godwitFiles {
	files := c.tree
	files.Dir, files.Listen = "/data", filesPort
	w := moves.Workload{Image: filesImage, Args: append([]string{image.ProgramPath}, files.Args()...)}
	return &godwitFiles{Godwit: moves.NewGodwit(b, mode, w, archive), what: c, flags: flags}
}

func (g *godwitFiles) home() string { return moves.GodwitVolumes }

func (g *godwitFiles) Start(ctx context.Context) error {
	for _, node := range testbed.Nodes {
		if node != g.At && !g.what.there {
			continue
		}
		if _, err := g.Bed.Exec(ctx, node, testbed.Program, "image", "load", g.Archive); err != nil {
			return err
		}
	}
	if err := g.Run(ctx, "--volume", filesVolume+":/data"); err != nil {
		return err
	}
	container, err := g.Inspect(ctx)
	if err != nil {
		return err
	}
	g.address = container.Definition.Network.Address.String()
	g.before, err = askTree(ctx, g.Bed, g.At, g.address, tree.AskTell)
	return err
}

func (g *godwitFiles) copy(ctx context.Context) ([]results.Measurement, error) {
	for _, node := range testbed.Nodes {
		if err := resetAgentMemory(g.Bed, node); err != nil {
			return nil, err
		}
	}
	flipped := make(chan error, 1)
	if g.what.flip {
		at, err := g.Bed.Sent()
		if err != nil {
			return nil, err
		}
		go func() { flipped <- g.flip(ctx, at+flipAfter*g.what.size()) }()
	} else {
		flipped <- nil
	}
	var report migration.Report
	sent, err := g.Bed.Counted(func() error {
		command := append(
			[]string{"migrate", g.Container(), testbed.Other(g.At), "--mode", string(g.Mode), "--json"},
			g.flags...)
		return g.Ask(ctx, &report, command...)
	})
	if err != nil {
		return nil, err
	}
	from := g.At
	g.At = report.Target
	measured := append(moves.FromReport(report),
		results.Measurement{results.Layers, float64(report.Bytes.Layers)})
	measured = append(append(measured, fromFiles(report)...), results.Measurement{results.Link, sent})
	for node, metric := range map[string]string{from: metricSourceMemory, g.At: metricTargetMemory} {
		peak, err := peakMemory(g.Bed, node)
		if err != nil {
			return nil, err
		}
		measured = append(measured, results.Measurement{metric, peak})
	}
	return measured, <-flipped
}

// flipAfter is the share of sent bytes after which the middle byte of a file has certainly been read.
const flipAfter = 0.6

// flip changes a byte when this much has been sent over the link.
func (g *godwitFiles) flip(ctx context.Context, at float64) error {
	ctx, cancel := context.WithTimeout(ctx, testbed.Asking)
	defer cancel()
	for {
		sent, err := g.Bed.Sent()
		if err != nil {
			return err
		}
		if sent > at {
			_, err := askTree(ctx, g.Bed, testbed.Nodes[0], g.address, tree.AskFlip)
			return err
		}
		if err := testbed.Pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("half of the file has not been sent: %w", err)
		}
	}
}

func (g *godwitFiles) verify(ctx context.Context) error {
	after, err := askTree(ctx, g.Bed, g.At, g.address, tree.AskVerify)
	if err == nil && after.Written < g.before.Written {
		err = fmt.Errorf("%d files were written, and the copy has %d of them", g.before.Written,
			after.Written)
	}
	return err
}

func (g *godwitFiles) Stop(ctx context.Context) error {
	var failed error
	for _, node := range testbed.Nodes {
		out, err := g.Bed.Exec(ctx, node, testbed.Program, "ps", "--all")
		if err == nil && strings.Contains(out, g.Container()) {
			_, err = g.Bed.Exec(ctx, node, testbed.Program, "rm", "--force", g.Container())
		}
		volume, pathErr := g.Bed.Path(node, filepath.Join(moves.GodwitVolumes, filesVolume))
		if pathErr == nil {
			pathErr = os.RemoveAll(volume)
		}
		failed = errors.Join(failed, err, pathErr, forgetImage(ctx, g.Bed, node))
	}
	return failed
}

// forgetImage removes the image from a node that may have it.
func forgetImage(ctx context.Context, b *testbed.Bed, node string) error {
	out, err := b.Exec(ctx, node, testbed.Program, "image", "ls")
	if err != nil || !strings.Contains(out, filesImage) {
		return err
	}
	_, err = b.Exec(ctx, node, testbed.Program, "image", "rm", filesImage)
	return err
}

// fromFiles returns a report's measurements of files. All rounds except the first count as copied again.
func fromFiles(r migration.Report) []results.Measurement {
	var first, again, last migration.FileRound
	rounds := 0.0
	for i, round := range r.FileRounds {
		if i == 0 {
			first = round
		} else {
			again.SentBytes += round.SentBytes
		}
		if round.Final {
			last.Seconds, last.ChangedEntries = last.Seconds+round.Seconds,
				last.ChangedEntries+round.ChangedEntries
		} else {
			rounds++
		}
	}
	if first.Final { // there is no other
		again.SentBytes = first.SentBytes
	}
	measured := []results.Measurement{
		{metricAgain, last.Seconds}, {metricAgainSent, float64(again.SentBytes)},
		{metricChanged, float64(last.ChangedEntries)},
		{metricFileRounds, rounds},
	}
	if rounds > 0 {
		measured = append(measured, results.Measurement{metricFirst, first.Seconds},
			results.Measurement{metricFirstSent, float64(first.SentBytes)})
	}
	return measured
}

// resetAgentMemory resets the kernel's peak of an agent's memory (proc(5), on clear_refs).
func resetAgentMemory(b *testbed.Bed, node string) error {
	pid, err := b.Lab.AgentPID(node)
	if err == nil {
		err = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
	if err != nil {
		return fmt.Errorf("memory of the agent on node %s: %w", node, err)
	}
	return nil
}

// peakMemory returns the agent's peak of memory since the reset: with the pages of its program, without
// the kernel's cache of its files.
func peakMemory(b *testbed.Bed, node string) (float64, error) {
	var status []byte
	pid, err := b.Lab.AgentPID(node)
	if err == nil {
		status, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	}
	var peak int64
	if err == nil {
		peak, err = testbed.Kibibytes(string(status), "VmHWM")
	}
	if err != nil {
		return 0, fmt.Errorf("memory of the agent on node %s: %w", node, err)
	}
	return float64(peak), nil
}
