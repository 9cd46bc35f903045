package sampling

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/patience"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/predict"
)

// gauge measures one container, in cycles: its size, the contents of its pages, and how many of them it
// writes within the windows of the dirtying curve. A look takes at most a hundredth of a processor.
type gauge struct {
	node       Node
	definition engine.Definition
	processes  func() ([]int, error) // of the container, even after the measuring has been ended
	publish    func(predict.Measured)
	wanted     func() bool

	watcher *memory.Watcher
	now     predict.Measured
	began   time.Time // the cycle
	wrote   uint64    // bytes of files by then
	used    time.Duration
	looked  time.Duration // duration of the last look
}

// looksShare is how many times longer than a look the pause before the next one is.
const looksShare = 100

// run measures until nobody is interested, or measuring fails.
func (g *gauge) run(ctx context.Context) (err error) {
	config := memory.SourceConfig{Processes: g.processes}
	if !g.mayTrack(ctx) {
		config.Tracking = memory.Hashing
	}
	g.watcher = memory.NewWatcher(config)
	defer func() { err = errors.Join(err, g.watcher.Close()) }()
	best, _ := memory.BestTracking()
	if config.Tracking == "" {
		config.Tracking = best
	}
	g.now.Tracking = string(config.Tracking)
	for g.wanted() && ctx.Err() == nil {
		if err := g.cycle(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// mayTrack reports whether the container's processes may be tracked: no migration or stage tracks them, and
// their memory is complete.
func (g *gauge) mayTrack(ctx context.Context) bool {
	if g.node.Staged(g.definition.ID) {
		return false
	}
	filling, err := g.node.Engine(g.definition).Memory(ctx, g.definition.ID)
	return err == nil && filling.State != memory.Filling
}

// cycle watches through all windows, as long as a caller is interested.
func (g *gauge) cycle(ctx context.Context) error {
	if err := g.watcher.Begin(); err != nil {
		return err
	}
	g.began, g.now.Curve = time.Now(), nil
	if err := g.begin(ctx); err != nil {
		return err
	}
	windows := predict.Windows()
	for i := 0; i < len(windows); {
		elapsed := time.Since(g.began)
		due := time.Duration(windows[i] * float64(time.Second))
		pause := min(due-elapsed, max(time.Second, looksShare*g.looked))
		if err := patience.Until(ctx, time.Now().Add(pause)); err != nil {
			return err
		}
		if due > watchOn && !g.wanted() {
			return nil
		}
		if time.Since(g.began) < due {
			if err := g.look(ctx); err != nil { // the memory may have grown
				return err
			}
			g.publish(g.copied())
			continue
		}
		if err := g.window(ctx, windows[i]); err != nil {
			return err
		}
		i++
	}
	return nil
}

// copied returns the measurements, with a curve of its own.
func (g *gauge) copied() predict.Measured {
	m := g.now
	m.Curve = append(predict.Curve{}, g.now.Curve...)
	return m
}

// window takes one point of the curve.
func (g *gauge) window(ctx context.Context, window float64) error {
	written, err := g.watcher.Written()
	if err != nil {
		return err
	}
	elapsed := time.Since(g.began).Seconds()
	if err := g.look(ctx); err != nil {
		return err
	}
	g.now.Curve = appendPoint(g.now.Curve, window, elapsed, written.Bytes)
	g.now.DeltaRatio = 0
	if written.Changed > 0 {
		g.now.DeltaRatio = min(1, deltaFactor*written.Changed)
	}
	wrote, used := g.counters(ctx)
	if elapsed >= leastRate {
		g.now.FilesChangedPerSecond = float64(wrote-min(wrote, g.wrote)) / elapsed
		g.now.CPUs = max(0, (used-g.used).Seconds()/elapsed)
	}
	g.publish(g.copied())
	return nil
}

// appendPoint adds to a curve the bytes that were written within about a window, which is a round number:
// on a busy machine the real time was longer. A curve does not fall, because written pages may have gone
// since.
func appendPoint(curve predict.Curve, window, elapsed, bytes float64) predict.Curve {
	bytes *= min(1, window/elapsed)
	if n := len(curve); n > 0 {
		bytes = max(bytes, curve[n-1].Bytes)
	}
	return append(curve, predict.Point{Seconds: window, Bytes: bytes})
}

const (
	// deltaFactor is how much longer a delta is than the changed bytes: it also stores their positions.
	deltaFactor = 1.25
	leastRate   = 0.05 // seconds: shorter measurements say little
)

// begin measures everything that is measured once in a cycle.
func (g *gauge) begin(ctx context.Context) error {
	contents, err := g.watcher.Contents()
	if err != nil {
		return err
	}
	g.now.ZeroShare, g.now.DuplicateShare = contents.Zero, contents.Duplicates
	g.now.Ratio, g.now.SampledPages = contents.Ratio, contents.Pages
	if contents.CompressBytesPerSecond > 0 {
		g.now.CompressBytesPerSecond = contents.CompressBytesPerSecond
	}
	g.wrote, g.used = g.counters(ctx)
	return g.look(ctx)
}

// look measures the container's current size.
func (g *gauge) look(ctx context.Context) error {
	began := time.Now()
	defer func() { g.looked = time.Since(began) }()
	pids, err := g.node.Engine(g.definition).Processes(ctx, g.definition.ID)
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return fmt.Errorf("%w: %s", engine.ErrNotRunning, g.definition.Name)
	}
	c := &g.now.Container
	c.Processes, c.Threads, c.Descriptors, c.Mappings = 0, 0, 0, 0
	var sum kernel.Kinds
	for _, pid := range pids {
		kinds, err := kernel.ReadKinds(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		sum = sum.Plus(kinds)
		c.Processes++
		if process, err := kernel.ReadProcess(pid); err == nil {
			c.Threads += process.Threads
		}
		if descriptors, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd"); err == nil {
			c.Descriptors += len(descriptors)
		}
	}
	c.PrivateBytes, c.SharedBytes, c.FileBytes = int64(sum.Private), int64(sum.Shared), int64(sum.File)
	c.ChangedBytes, c.SwapBytes, c.Mappings = int64(sum.Changed), int64(sum.Swapped), sum.Mappings
	c.SharesCopyOnWriteBytes = int64(sum.Private - min(sum.Private, sum.OwnShare))
	if count, queued, err := g.node.Connections(g.definition.ID); err == nil {
		c.Connections, c.QueuedBytes = count, queued
	}
	g.now.At = time.Now().UTC()
	return nil
}

// counters returns the bytes that the container's processes have written to files, without those dropped
// before they reached the disk, and the processor time used.
func (g *gauge) counters(ctx context.Context) (wrote uint64, used time.Duration) {
	pids, err := g.node.Engine(g.definition).Processes(ctx, g.definition.ID)
	if err != nil {
		return 0, 0
	}
	for _, pid := range pids {
		table, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(table)) { // proc_pid_io(5)
			if value, is := strings.CutPrefix(line, "write_bytes:"); is {
				// 0 if the kernel prints something else
				n, _ := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
				wrote += n
			}
			if value, is := strings.CutPrefix(line, "cancelled_write_bytes:"); is {
				n, _ := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
				wrote -= min(n, wrote)
			}
		}
	}
	used, _ = g.node.Engine(g.definition).CPUTime(ctx, g.definition.ID) // 0 if not counted
	return wrote, used
}
