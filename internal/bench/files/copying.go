package files

import (
	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/tree"
)

// The ways that only the suite files has.
const (
	wayRsyncTwice = "rsync"          // by its own protocol, twice: the second time nothing is written
	wayRsyncSSH   = "rsync over ssh" // the same
	wayVolume     = "podman volume"  // export | import, over ssh
	waySave       = "podman save"    // save | load, over ssh
)

// Ways lists the ways of the suite files.
func Ways() []string {
	return []string{wayRsyncTwice, wayRsyncSSH, wayVolume, waySave, moves.WayCold, moves.WayPreCopy,
		moves.WayRestart,
		moves.WayStopped}
}

// Metrics of the suite files. Sent bytes are counted on the link, in both directions, whoever sends them;
// but for parts of Godwit they are the content of files according to its report.
const (
	metricTree      = "tree_bytes"    // size of the files: in a quick run less than its name says
	metricFirst     = "first_seconds" // the first copy
	metricFirstSent = "first_sent_bytes"
	// the copy while nothing is written: for Godwit a part of the freeze
	metricAgain        = "again_seconds"
	metricAgainSent    = "again_sent_bytes" // everything after the first copy
	metricChanged      = "changed_entries"  // that the last copy found
	metricFileRounds   = "file_rounds"      // before the freeze
	metricSourceMemory = "source_agent_bytes"
	metricTargetMemory = "target_agent_bytes"
)

// The workloads of the suite files.
const (
	workloadOneFile  = "one file" // baseline for the freezes of others
	workloadLarge    = "1GiB in 10 files"
	workloadMany     = "100,000 files" // 1 KiB each
	workloadByte     = "1GiB file, 1 byte changed"
	workloadThere    = "2GiB image, there"
	workloadNotThere = "590MB image, not there"
	workloadStore    = "400MB of messages, 1 MB/s written"
)

// Links of the suite files.
const (
	linkFar    = "1gbit/50ms"
	linkStudyA = "15mbit/50ms"
)

// copying is a container with files that is moved over a link in several ways, or files that others copy.
type copying struct {
	name  string
	link  string
	tree  tree.Config
	image []int64 // bytes of the layers of its image, in addition to the program's
	there bool    // the target has the image
	flip  bool    // a byte is changed during the first copy
	next  int     // files rewritten before others copy again; Godwit's are rewritten all the time
	ways  []string
	runs  int // of each way
	quick int // in a quick run; 0: none
	part  int // divisor of the size in a quick run; 0: full size
}

// copyings returns the workloads of the suite files.
func copyings() []copying {
	own, rsyncs := []string{moves.WayCold, moves.WayPreCopy}, []string{wayRsyncTwice, wayRsyncSSH}
	with := func(ways []string, more ...string) []string { return append(more, ways...) }
	small := tree.Config{Files: 100_000, Size: results.Kibi, Rate: 200}
	messages := tree.Config{Files: 40_000, Size: 10_000, Rate: 100, Replace: true}
	bulk := func(layers int, size int64) []int64 {
		all := make([]int64, layers)
		for i := range all {
			all[i] = size
		}
		return all
	}
	return []copying{
		{
			name: workloadOneFile, link: testbed.LinkFast,
			tree:  tree.Config{Files: 1, Size: results.Kibi, Rate: 200},
			there: true, ways: own,
			runs: 7, quick: 3,
		},
		{
			name: workloadLarge, link: testbed.LinkFast,
			tree:  tree.Config{Files: 10, Size: results.Gibi / 10},
			there: true,
			ways:  with(own, wayRsyncTwice, wayRsyncSSH, wayVolume), runs: 3, quick: 1, part: 8,
		},
		{
			name: workloadMany, link: testbed.LinkFast, tree: small, there: true, next: 10,
			ways: with(own, wayRsyncTwice, wayRsyncSSH, wayVolume), runs: 3, quick: 1, part: 10,
		},
		{name: workloadMany, link: linkFar, tree: small, there: true, next: 10,
			ways: with([]string{moves.WayPreCopy}, rsyncs...), runs: 3},
		{
			name: workloadByte, link: testbed.LinkFast, tree: tree.Config{Files: 1, Size: results.Gibi},
			there: true,
			flip:  true,
			ways:  with([]string{moves.WayPreCopy}, rsyncs...), runs: 3, quick: 1, part: 8,
		},
		{
			name: workloadThere, link: linkStudyA, tree: tree.Config{Files: 1, Size: results.Kibi},
			image: bulk(8, 256*results.Mebi), there: true,
			ways: with(own, wayRsyncTwice), runs: 3, quick: 1, part: 16,
		},
		{
			name: workloadNotThere, link: testbed.LinkFast, tree: tree.Config{Files: 1, Size: results.Kibi},
			image: bulk(5, 111e6),
			ways:  with(own, wayRsyncTwice, waySave), runs: 3, quick: 1, part: 8,
		},
		{
			name: workloadStore, link: testbed.LinkStudyD, tree: messages, there: true, runs: 1, quick: 1,
			part: 20,
			ways: with([]string{moves.WayPreCopy, moves.WayRestart}, wayRsyncTwice, moves.WayCold,
				moves.WayStopped),
		},
	}
}

func (c *copying) turns() testbed.Turns {
	return testbed.Turns{Title: c.name, Ways: &c.ways, Runs: &c.runs, Quick: c.quick}
}

// sized returns the workload of this run: a quick run has less data, with fewer changes.
func (c copying) sized(quick bool) copying {
	if !quick || c.part == 0 {
		return c
	}
	if c.tree.Files > c.part*c.part {
		c.tree.Files /= c.part
	} else {
		c.tree.Size /= int64(c.part)
	}
	if c.tree.Replace {
		c.tree.Rate = max(1, c.tree.Rate/c.part)
	}
	image := make([]int64, len(c.image))
	for i, size := range c.image {
		image[i] = size / int64(c.part)
	}
	c.image = image
	return c
}

// size returns the number of bytes to copy.
func (c copying) size() float64 {
	sum := float64(c.tree.Files) * float64(c.tree.Size)
	if len(c.image) > 0 {
		sum = 0
		for _, size := range c.image {
			sum += float64(size)
		}
	}
	return sum
}

// Names lists the workloads of the suite files.
func Names() []string {
	return testbed.NamesOf(copyings(), func(c copying) string { return c.name })
}

// selectedCopyings returns the workloads that a configuration selects, with its ways and numbers of runs.
func selectedCopyings(c testbed.Config) ([]copying, error) {
	return testbed.SelectTurns(c, copyings(), Ways(), (*copying).turns)
}
