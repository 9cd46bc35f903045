package postcopy

import (
	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

// Metrics of the suite postcopy.
const (
	metricProgram = "program_bytes" // size of its memory: in a quick run less than its name says
	// Measurements of the program.
	metricWaits       = "waits"               // how often it had to wait for a page
	metricFaultsPer   = "faults_per_gibibyte" // the same, per memory that came
	metricWaitMedian  = "wait_median_seconds" // how long, by its own clock
	metricWaitP99     = "wait_p99_seconds"
	metricWaitLongest = "wait_longest_seconds"
	// from the resume until its client has an answer that needs all hot memory
	metricAnswered = "answered_seconds"
)

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// from the resume until its client has an answer that needs all hot memory

// The workloads of the suite postcopy: programs with this much incompressible memory.
const (
	workloadSmall        = "1MiB"
	workload64           = "64MiB"
	workload1024         = "1GiB"
	workload1024Slow     = "1GiB, 10 MB/s written"
	workload1024Fast     = "1GiB, 200 MB/s written"
	workload4096         = "4GiB"
	workloadRewritten    = "1GiB rewritten at 100 MB/s"
	workloadLoaded       = "4 threads jump"
	workloadScans        = "scans"
	workloadJumps        = "jumps"
	workloadFollowingFog = "fog"              // as in the suite switchover
	workloadWhole        = "recogniser"       // the same, with pages written as a whole
	workloadPartly       = "recogniser, 64 B" // 64 bytes of each written page change
)

// linkLong has the latency of a link across an ocean.
const linkLong = "100mbit/100ms"

// following is a program that is moved over a link in several ways.
type following struct {
	name   string
	memory pages.Config
	link   string
	ways   []string
	access string // its work meanwhile: pages.Scan, pages.Jump or nothing
	client bool   // it has a client that requests all hot memory ten times a second
	runs   int    // of each way
	quick  int    // in a quick run; 0: none
	size   int64  // of its memory in a quick run; 0: the same
}

// followings returns the workloads of the suite postcopy.
func followings() []following {
	lazy, both := []string{moves.WayLazy, moves.WayPostCopy}, []string{moves.WayPreCopy, moves.WayHybrid}
	return []following{
		{name: workloadSmall, memory: pages.Config{Size: results.Mebi}, link: testbed.LinkFaster, ways: lazy,
			runs:  7,
			quick: 2},
		{name: workload64, memory: pages.Config{Size: 64 * results.Mebi}, link: testbed.LinkFaster,
			ways:  lazy,
			runs:  5,
			quick: 1},
		{name: workload1024, memory: pages.Config{Size: results.Gibi}, link: testbed.LinkFaster, ways: lazy,
			runs: 3},
		{name: workload1024Slow, memory: pages.Config{Size: results.Gibi, Rate: 10e6},
			link: testbed.LinkFaster,
			ways: lazy,
			runs: 3},
		{name: workload1024Fast, memory: pages.Config{Size: results.Gibi, Rate: 200e6},
			link: testbed.LinkFaster,
			ways: lazy,
			runs: 3, quick: 1},
		{name: workload4096, memory: pages.Config{Size: 4 * results.Gibi}, link: testbed.LinkFaster,
			ways: lazy,
			runs: 3},
		{
			name: workloadRewritten, memory: pages.Config{Size: results.Gibi, Rate: 100e6},
			link: testbed.LinkFast,
			ways: both,
			runs: 3, quick: 1, size: 256 * results.Mebi,
		},
		{
			name: workloadLoaded, memory: pages.Config{Size: results.Gibi, Threads: 4}, access: pages.Jump,
			link: testbed.LinkFast, ways: lazy,
			runs: 2, quick: 1, size: 256 * results.Mebi,
		},
		{
			name: workloadLoaded, memory: pages.Config{Size: 256 * results.Mebi, Threads: 4},
			access: pages.Jump,
			link:   linkLong, ways: lazy,
			runs: 1, quick: 1, size: 64 * results.Mebi,
		},
		{
			name: workloadJumps, memory: pages.Config{Size: 256 * results.Mebi}, access: pages.Jump,
			link: testbed.LinkMiddle,
			ways: lazy,
			runs: 2, quick: 1, size: 64 * results.Mebi,
		},
		{
			name: workloadScans, memory: pages.Config{Size: results.Gibi}, access: pages.Scan,
			link: testbed.LinkFast,
			ways: lazy,
			runs: 2, quick: 1, size: 256 * results.Mebi,
		},
		{
			name: workloadJumps, memory: pages.Config{Size: results.Gibi}, access: pages.Jump,
			link: testbed.LinkFast,
			ways: lazy,
			runs: 2, quick: 1, size: 256 * results.Mebi,
		},
		{
			name: workloadFollowingFog, memory: pages.Config{Size: moves.FogBytes, Rate: 500e3, Hot: 10e6},
			link: testbed.LinkMobility,
			ways: []string{moves.WayLazy, moves.WayCold, moves.WayPostCopy}, runs: 1, quick: 1, size: 8 *
				results.Mebi,
		},
		recogniser(workloadWhole, 0), recogniser(workloadPartly, 64),
	}
}

// recogniser is study A's OpenFace over its slowest link: 22 of its 140 MB are written again and again. The
// study does not say how much of each written page changes.
func recogniser(name string, change int) following {
	return following{
		name: name, memory: pages.Config{Size: 140e6, Rate: 22e6, Hot: 22e6, Order: pages.Cycle,
			Change: change}, link: testbed.LinkSlow,
		client: true, ways: []string{moves.WayLazy, moves.WayPostCopy, moves.WayHybrid}, runs: 1,
	}
}

// workload returns the program, in a quick run with less memory.
func (f following) workload(quick bool) moves.Workload {
	memory := f.memory
	if quick && f.size > 0 {
		memory.Hot = int64(float64(memory.Hot) * float64(f.size) / float64(memory.Size))
		memory.Size = f.size
	}
	memory.Listen = followingPort
	w := moves.OfPages(f.name, memory)
	w.Client = f.client
	// Go's scheduler interrupts long-running code by signals, even while it waits for a page, and the page
	// is then requested again.
	w.Env = []string{"GODEBUG=asyncpreemptoff=1"}
	return w
}

const followingPort = 7000

// Names lists the workloads of the suite postcopy.
func Names() []string {
	return testbed.NamesOf(followings(), func(f following) string { return f.name })
}

// Ways lists the ways of the suite postcopy.
func Ways() []string {
	return []string{moves.WayLazy, moves.WayCold, moves.WayPreCopy, moves.WayPostCopy, moves.WayHybrid}
}

func (f *following) turns() testbed.Turns {
	return testbed.Turns{Title: f.name, Ways: &f.ways, Runs: &f.runs, Quick: f.quick}
}

// selectedFollowings returns the workloads that a configuration selects, with its ways and numbers of runs.
func selectedFollowings(c testbed.Config) ([]following, error) {
	return testbed.SelectTurns(c, followings(), Ways(), (*following).turns)
}
