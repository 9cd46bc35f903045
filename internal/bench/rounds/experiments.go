package rounds

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
)

// Metrics of the suite rounds.
const (
	metricStopped = "stopped_seconds" // the process did not run
	metricAttach  = "attach_seconds"  // until its memory is registered
	metricDetach  = "detach_seconds"  // until nothing of the tracking is left in it
	// finding written pages, protecting them again, looking for zeros
	metricScan  = "scan_seconds"
	metricFound = "found_bytes"  // the size of these pages
	metricRead  = "read_seconds" // copying it out of the process
	// comparing with the receiver's copy, and encoding into frames; of which…
	metricPass      = "pipeline_seconds"
	metricHash      = "hash_seconds"             // …the digests, measured alone
	metricRate      = "rate_bytes_per_second"    // of everything together, per second of a processor
	metricFree      = "free_writes_per_second"   // of an undisturbed writer
	metricTracked   = "copied_writes_per_second" // of the same writer while it is copied
	metricSlowDown  = "slow_down_ratio"
	metricWaited    = "processor_taken_ratio"      // of the time, by other processes: not counted above
	metricPageCosts = "slow_down_per_page_seconds" // and round
)

const (
	gigabit = 1e9 / 8 // bytes per second
)

// experiments are the measurements of the suite rounds. All use 1 GiB of memory.
func experiments() []experiment {
	return []experiment{
		{
			name: "attach", way: wayTracking, memory: pages.Config{Size: results.Gibi, Rate: 10e6},
			samples: 50, quick: 10, needs: canTrack, measure: measureAttach,
			asked: []demand{{what: "a process is stopped for less than 1 ms", metric: metricStopped,
				most: 0.001}},
		},
		{
			name: "scan, 1 MB dirty", way: wayTracking, memory: pages.Config{Size: results.Gibi, Rate: 10e6},
			samples: 30, quick: 5, needs: canTrack, measure: measureScan,
			asked: []demand{{what: "a scan of 1 GiB, little dirty, takes less than 3 ms", metric: metricScan,
				most: 0.003}},
		},
		{
			name: "scan, all dirty", way: wayTracking, memory: pages.Config{Size: results.Gibi, Pound: true},
			samples: 15, quick: 3, needs: canTrack, measure: measureScanOfAll,
			asked: []demand{{what: "a scan of 1 GiB, all dirty, takes less than 25 ms", metric: metricScan,
				most: 0.025}},
		},
		{
			name: "round to frames", way: wayTracking, memory: pages.Config{Size: results.Gibi},
			samples: 7, quick: 2, measure: measurePipeline,
			asked: []demand{{
				what:   "incompressible memory goes from process to frame at 1.5 GB/s on one core",
				metric: metricRate, least: 1.5e9,
			}},
		},
		{
			name: "pre-dump", way: moves.WayPreDump, memory: pages.Config{Size: results.Gibi, Rate: 10e6},
			samples: 5, quick: 2, needs: moves.CanPreDump, measure: measurePreDump,
		},
		{
			name: "writer beside rounds at 1 Gbit/s", way: wayTracking,
			memory:  pages.Config{Size: results.Gibi, Pound: true},
			samples: 1, quick: 1, needs: canBeApart, measure: measureSlowDown,
			asked: []demand{{what: "a writer that memory limits is slowed down by less than 10 %",
				metric: metricSlowDown, most: 0.1}},
		},
	}
}

const (
	wayTracking = "godwit"
)

func measureAttach(_ context.Context, s *subject) ([]results.Measurement, error) {
	began := time.Now()
	t, stopped, err := track(s)
	if err != nil {
		return nil, err
	}
	attached := time.Since(began)
	began = time.Now()
	if err := t.close(); err != nil {
		return nil, err
	}
	return []results.Measurement{
		{metricStopped, stopped.Seconds()}, {metricAttach, attached.Seconds()},
		{metricDetach, time.Since(began).Seconds()},
	}, nil
}

func measureScan(ctx context.Context, s *subject) ([]results.Measurement, error) {
	return scanAfter(s, func() error { return testbed.Pause(ctx, 100*time.Millisecond) })
}

// writesPerPage is so many random writes per page that none of 262,144 pages stays unwritten.
const writesPerPage = 20

func measureScanOfAll(ctx context.Context, s *subject) ([]results.Measurement, error) {
	return scanAfter(s, func() error {
		m := s.tracked.mapping
		return s.awaitWrites(ctx, writesPerPage*(m.End-m.Start)/uint64(memory.PageSize()))
	})
}

// scanAfter scans for pages that meanwhile wrote.
func scanAfter(s *subject, meanwhile func() error) ([]results.Measurement, error) {
	if s.tracked == nil {
		t, _, err := track(s)
		if err != nil {
			return nil, err
		}
		s.tracked = t
		if _, _, err := t.scan(); err != nil { // writes are tracked from now on
			return nil, err
		}
	}
	if err := meanwhile(); err != nil {
		return nil, err
	}
	took, found, err := s.tracked.scan()
	if err != nil {
		return nil, err
	}
	bytes := float64(found) * float64(memory.PageSize())
	return []results.Measurement{{metricScan, took.Seconds()}, {metricFound, bytes}}, nil
}

// source returns the view of the process that a migration uses.
func (s *subject) source() *memory.Source {
	return memory.NewSource(memory.SourceConfig{Processes: func() ([]int, error) {
		return []int{s.pid()},
			nil
	}})
}

// link takes frames: at once, or at the speed of a link with a bandwidth.
type link struct {
	ctx    context.Context
	rate   float64 // bytes per second; 0: no limit
	freeAt time.Time
}

// Send takes a frame of the pipeline.
func (l *link) Send(frame []byte) error {
	if l.rate == 0 {
		return nil
	}
	now := time.Now()
	if l.freeAt.Before(now) {
		l.freeAt = now
	}
	l.freeAt = l.freeAt.Add(time.Duration(float64(len(frame)) / l.rate * 1e9))
	return testbed.Pause(l.ctx, l.freeAt.Sub(now))
}

// Push does nothing.
func (l *link) Push() error { return nil }

// newSender returns the pipeline of a migration that sends to a link.
func newSender(to *link) (*pipeline.Sender, error) {
	key, err := pipeline.NewKey()
	if err != nil {
		return nil, err
	}
	sender, err := pipeline.NewSender(pipeline.SenderConfig{Key: key})
	if err != nil {
		return nil, err
	}
	return sender, sender.AddLane(to)
}

// measurePipeline sends all of the memory to nowhere, on one core. It uses no codec, because the codec
// depends on the link.
func measurePipeline(ctx context.Context, s *subject) (_ []results.Measurement, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	sender, err := newSender(&link{ctx: ctx})
	if err != nil {
		return nil, err
	}
	defer sender.Close()
	source := s.source()
	defer func() { err = errors.Join(err, source.Close()) }()
	began, used := time.Now(), cpuTime()
	stats, err := source.Round(ctx, sender)
	if err == nil {
		_, err = sender.Barrier(ctx)
	}
	if err != nil {
		return nil, err
	}
	all, cpu := time.Since(began).Seconds(), cpuTime()-used
	hash, err := hashing(stats.Pages)
	return []results.Measurement{
		{metricRate, float64(stats.Bytes()) / cpu}, {results.Round, all},
		{metricScan, stats.Scan.Seconds()}, {metricRead, stats.Read.Seconds()},
		{metricPass, stats.Write.Seconds()}, {metricHash, hash},
	}, err
}

// cpuTime returns this process's processor time, in seconds: on a busy machine less than the clock's.
func cpuTime() float64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return math.NaN() // it cannot fail with these arguments (getrusage(2))
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// hashing returns how long the digests of so many pages take.
func hashing(pages uint64) (float64, error) {
	key, err := pipeline.NewKey()
	if err != nil {
		return 0, err
	}
	hasher, err := pipeline.NewHasher(key)
	if err != nil {
		return 0, err
	}
	batch := make([]byte, results.Mebi)
	began := time.Now()
	for i := range pages {
		at := int(i) * memory.PageSize() % len(batch)
		hasher.Page(batch[at : at+memory.PageSize()])
	}
	return time.Since(began).Seconds(), nil
}

const (
	undisturbed = 2 * time.Second
	rounds      = 2 // with all memory dirty: 8.6 s each
)

// measureSlowDown copies the memory of a process on a processor of its own, in rounds, over a link of 1
// Gbit/s.
func measureSlowDown(ctx context.Context, s *subject) (_ []results.Measurement, err error) {
	together, err := apart(s.pid())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, together()) }()
	began := time.Now()
	if err := testbed.Pause(ctx, undisturbed); err != nil {
		return nil, err
	}
	copying := time.Now()
	found, err := copyInRounds(ctx, s)
	if err != nil {
		return nil, err
	}
	copied := time.Now()
	if err := testbed.Pause(ctx, undisturbed); err != nil {
		return nil, err
	}
	during, err := s.speed(copying, copied)
	before, err2 := s.speed(began, copying)
	after, err3 := s.speed(copied, time.Now())
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, err
	}
	free := (before.perSecond + after.perSecond) / 2
	slowDown := 1 - during.perSecond/free
	return []results.Measurement{
		{metricSlowDown, slowDown}, {metricFree, free}, {metricTracked, during.perSecond},
		{metricPageCosts, slowDown * copied.Sub(copying).Seconds() / float64(found)},
		{metricWaited, during.waited},
	}, nil
}

// copyInRounds returns the number of pages found.
func copyInRounds(ctx context.Context, s *subject) (found uint64, err error) {
	sender, err := newSender(&link{ctx: ctx, rate: gigabit})
	if err != nil {
		return 0, err
	}
	defer sender.Close()
	source := s.source()
	defer func() { err = errors.Join(err, source.Close()) }()
	for range rounds {
		stats, err := source.Round(ctx, sender)
		if err == nil {
			_, err = sender.Barrier(ctx)
		}
		if err != nil {
			return 0, err
		}
		found += stats.Pages
	}
	return found, nil
}

// measurePreDump measures the same with CRIU.
func measurePreDump(ctx context.Context, s *subject) ([]results.Measurement, error) {
	tool, err := criu.Find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/dev/shm", "godwit-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	cmd := exec.CommandContext(ctx, tool.Path, "pre-dump", "--tree", fmt.Sprint(s.pid()), "--images-dir", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("criu pre-dump: %w: %s", err, out[max(0, len(out)-testbed.MaxErrorText):])
	}
	return []results.Measurement{{results.Round, time.Since(began).Seconds()}}, nil
}
