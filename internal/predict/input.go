package predict

import (
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// Container holds the measurements of a container.
type Container struct {
	PrivateBytes int64 `json:"private_bytes"` // anonymous memory of its processes
	SharedBytes  int64 `json:"shared_bytes"`  // that they share without a file
	FileBytes    int64 `json:"file_bytes"`    // of files that they have mapped; not sent
	// private changed pages of files, which are in the execution state
	ChangedBytes int64 `json:"changed_bytes"`
	SwapBytes    int64 `json:"swap_bytes"` // of the first two, that are swapped out

	Curve Curve `json:"dirtying_curve"`
	// The contents of its pages, from a sample.
	ZeroShare      float64 `json:"zero_share"`
	DuplicateShare float64 `json:"duplicate_share"` // that have the content of another page, and are not zero
	Ratio          float64 `json:"compressed_ratio"`
	// DeltaRatio is the share of a rewritten page that has to be sent. 0: not known, all of it.
	DeltaRatio   float64 `json:"delta_ratio"`
	SampledPages int     `json:"sampled_pages"` // 0: their contents are not known

	Processes   int `json:"processes"`
	Threads     int `json:"threads"`
	Descriptors int `json:"descriptors"`
	Mappings    int `json:"mappings"`
	Connections int `json:"connections"`
	// in the queues of connections, which are in the execution state
	QueuedBytes int64   `json:"queued_bytes"`
	CPUs        float64 `json:"cpus"` // that the container uses

	FileTreeBytes         int64   `json:"file_tree_bytes"` // writable layer and volumes
	FileTreeEntries       int64   `json:"file_tree_entries"`
	FilesChangedPerSecond float64 `json:"files_changed_bytes_per_second"`
	MissingLayerBytes     int64   `json:"missing_layer_bytes"` // of the image, that the target lacks
	// of the staged copy at the target; 0: there is none
	StagedAge float64 `json:"staged_age_seconds"`
	// until the container has ended in mode restart; 0: not known
	StopSeconds            float64 `json:"stop_seconds"`
	StartSeconds           float64 `json:"start_seconds"` // until the container is healthy
	CheckpointImpossible   string  `json:"checkpoint_impossible,omitempty"`
	RestartImpossible      string  `json:"restart_impossible,omitempty"`
	SharesCopyOnWriteBytes int64   `json:"shares_copy_on_write_bytes"`
}

// memory returns the bytes of memory to send.
func (c Container) memory() float64 { return float64(c.PrivateBytes + c.SharedBytes) }

// Link is the path to the target.
type Link struct {
	RTTSeconds             float64 `json:"rtt_seconds"`
	JitterSeconds          float64 `json:"jitter_seconds"`
	BandwidthBitsPerSecond float64 `json:"bandwidth_bits_per_second"` // to the target; 0: not known
	BackBitsPerSecond      float64 `json:"back_bits_per_second"`      // from the target; 0: not known
	Loss                   float64 `json:"loss"`                      // share of bytes sent again
	Seen                   float64 `json:"seen_seconds_ago"`          // when the bandwidth was last measured
}

// Machine is the speed of a node.
type Machine struct {
	Cores int `json:"cores"`
	// read, digest, copy and encrypt, on one core
	PageBytesPerSecond float64 `json:"page_bytes_per_second"`
	// by the fastest level of zstd, on one core
	CompressBytesPerSec float64 `json:"compress_bytes_per_second"`
	// Slowness is how much longer the work took than Costs say, in past migrations. 0: not known, taken as
	// 1.
	Slowness float64 `json:"slowness"`
}

// Costs are the times that do not depend on the link, in seconds, of a container of one process; and its
// fixed costs on the link.
type Costs struct {
	Examine, Reserve, Arrive float64 // the steps of these names
	Rounds                   float64 // of files, and to open the connections for pages
	Prepare                  float64 // CRIU starts, and everything is prepared
	Quiesce                  float64 // from the end of the last round until nothing runs
	Dump, Restore            float64 // the freeze
	End                      float64 // from the resume until the source has nothing left

	// Round trips of the link.
	TripsConnect, TripsRounds, TripsPrepare, TripsPush, TripsEnd float64

	// Additional time of dump and restore together, for each object beyond the first.
	Process, Thread, Mapping, Descriptor, Connection float64
	// to find the pages that are touched first, and send them first, of remote pages
	Touched                  float64
	Tables                   float64 // for a byte of memory that was sent ahead or follows
	DumpByte, RestoreByte    float64 // for a byte of memory that goes with the state
	StateBytes, StateProcess float64 // of execution state on the link: of one process, of each additional one
	StateRatio               float64 // of changed pages of files, in the state: what compression leaves
	Entry                    float64 // for an entry of the file trees, in the freeze
	Scan                     float64 // for a byte of memory, in each round
	Kill                     float64 // for a byte of memory, when the source's copy is removed
}

// DefaultCosts returns the costs on a virtual machine with two cores of an AMD EPYC and Linux 6.18, CRIU
// 4.1. They are rough: read off few runs of "godwit-lab bench predict" beside other work and, for a byte,
// off the differences between containers of 64 MiB and 4 GiB in "bench switchover" and "bench postcopy".
// Machine.Slowness learns the difference of another machine.
func DefaultCosts() Costs {
	return Costs{
		Examine: 0.015, Reserve: 0.007, Arrive: 0.070, Rounds: 0.040, Prepare: 0.035, Quiesce: 0.005,
		Dump: 0.022, Restore: 0.022, End: 0.035,
		TripsConnect: 2.2, TripsRounds: 0.3, TripsPrepare: 1, TripsPush: 2, TripsEnd: 1.7,
		Process: 2e-3, Thread: 0.15e-3, Mapping: 15e-6, Descriptor: 60e-6, Connection: 0.4e-3, Touched: 15e-3,
		Tables:   12e-3 / (1 << 30),
		DumpByte: 0.35 / (1 << 30), RestoreByte: 0.6 / (1 << 30), StateBytes: 17e3, StateProcess: 4e3,
		StateRatio: 0.13,
		Entry:      0.5e-6, Scan: 1.5e-3 / (1 << 30), Kill: 0.1 / (1 << 30),
	}
}

// Demands are the user's demands on a migration.
type Demands struct {
	Settings   migration.Settings `json:"-"`
	Deadline   time.Duration      `json:"-"` // the container has to run at the target by then; 0: none
	MaxBytes   int64              `json:"-"` // on the link; 0: any number
	NoPostCopy bool               `json:"-"` // its state must never be on two nodes
	// Split bounds how long the state may be on two nodes.
	Split migration.SplitLimit `json:"-"`
	// Refused are modes that a node does not allow, and why.
	Refused map[migration.Mode]string `json:"-"`
}

// Input is everything that a prediction is made from.
type Input struct {
	Container Container `json:"container"`
	Link      Link      `json:"link"`
	Source    Machine   `json:"source"`
	Target    Machine   `json:"target"`
	Past      Past      `json:"past,omitempty"`
	Pace      Pace      `json:"pace"`
	// from past rounds, for longer times than the container was watched
	Longer  Curve   `json:"longer_curve,omitempty"`
	Demands Demands `json:"-"`
	Costs   Costs   `json:"-"` // zero: DefaultCosts
}

// sane returns the input with impossible values treated as unknown: the input also comes from other nodes,
// and from files of the kernel that are read while processes end.
func (in Input) sane() Input {
	c, l := &in.Container, &in.Link
	for _, n := range []*int64{
		&c.PrivateBytes, &c.SharedBytes, &c.FileBytes, &c.ChangedBytes, &c.SwapBytes, &c.QueuedBytes,
		&c.FileTreeBytes, &c.FileTreeEntries, &c.MissingLayerBytes,
	} {
		*n = min(max(*n, 0), mostBytes)
	}
	for _, n := range []*int{&c.Processes, &c.Threads, &c.Descriptors, &c.Mappings, &c.Connections,
		&c.SampledPages} {
		*n = min(max(*n, 0), mostThings)
	}
	for _, x := range []*float64{&c.ZeroShare, &c.DuplicateShare, &c.Ratio, &c.DeltaRatio, &l.Loss} {
		*x = within(*x, 1)
	}
	for _, x := range []*float64{
		&c.CPUs, &c.StagedAge, &c.StopSeconds, &c.StartSeconds, &l.RTTSeconds, &l.JitterSeconds,
		&in.Source.Slowness, &in.Target.Slowness,
	} {
		*x = within(*x, mostSeconds)
	}
	l.BandwidthBitsPerSecond, l.BackBitsPerSecond = within(l.BandwidthBitsPerSecond, 1e13),
		within(l.BackBitsPerSecond, 1e13)
	if l.BandwidthBitsPerSecond < leastBandwidth {
		l.BandwidthBitsPerSecond = 0
	}
	c.FilesChangedPerSecond = within(c.FilesChangedPerSecond, 1e12)
	in.Source.PageBytesPerSecond = within(in.Source.PageBytesPerSecond, 1e13)
	in.Source.CompressBytesPerSec = within(in.Source.CompressBytesPerSec, 1e13)
	in.Past = in.Past.sane()
	in.Longer = in.Longer.sane()
	in.Pace = Pace{Rounds: within(in.Pace.Rounds, slowestPace), Push: within(in.Pace.Push, slowestPace)}
	return in
}

// slowestPace is a kilobyte per second.
const slowestPace = 1e-3

const (
	mostBytes      = 1 << 50
	mostThings     = 1 << 24
	mostSeconds    = 30 * 24 * 3600
	leastBandwidth = 1e3 // bits per second
)

// within returns x if it is a number from 0 to most.
func within(x, most float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, most)
}
