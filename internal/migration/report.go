package migration

import (
	"slices"
	"time"
)

// Report is the result of a migration on both nodes, for users and programs. See DESIGN for the fields.
type Report struct {
	Migration string `json:"migration"`
	Container string `json:"container"`
	Source    string `json:"source"`
	Target    string `json:"target"`
	Mode      Mode   `json:"mode"`
	// Requested is the mode that the user named, if another mode was chosen.
	Requested Mode    `json:"requested_mode,omitempty"`
	Result    Result  `json:"result"`
	Error     *string `json:"error"`
	// Alarm is why only an operator can decide where the container runs, with what each node knows.
	Alarm string `json:"alarm,omitempty"`
	// Problems are the refusals, if it was refused.
	Problems []Problem `json:"problems,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	Started  time.Time `json:"started"`

	HandoffSeconds       float64 `json:"handoff_seconds"`
	TotalSeconds         float64 `json:"total_seconds"`
	DowntimeSeconds      float64 `json:"downtime_seconds"`
	DowntimeErrorSeconds float64 `json:"downtime_error_seconds"` // of comparing two clocks
	// SplitSeconds is for how long both nodes were needed: from the resume until the target had everything,
	// or now.
	SplitSeconds float64 `json:"split_seconds"`

	Phases []Phase `json:"phases"`
	Rounds []Round `json:"rounds"`
	// FileRounds are the passes over the container's files: writable layer, volumes and other files.
	FileRounds []FileRound `json:"file_rounds"`
	Bytes      Bytes       `json:"bytes"`
	Link       LinkSeen    `json:"link"`
	Held       Held        `json:"held"`
	Decisions  []string    `json:"decisions,omitempty"`
	// Throttles are the steps by which the container was slowed down so that its rounds converge.
	Throttles []ThrottleStep `json:"throttles,omitempty"`
	// Layers describes how the image's layers came to the target. nil: the target had the image.
	Layers *Layers `json:"layers,omitempty"`
	// Push describes the post-copy push of the memory that was still at the source at the handover. nil:
	// there was none.
	Push *Push `json:"drain,omitempty"`
	// Volumes are the container's volumes, and how the migration treated them.
	Volumes []VolumeMoved `json:"volumes,omitempty"`

	DirtyingRateBytesPerSecond float64 `json:"dirtying_rate_bytes_per_second"`
	// MemoryGrowthBytes is how much more memory the processes take at the target: each has its own copy of
	// memory that they shared copy-on-write.
	MemoryGrowthBytes int64 `json:"memory_growth_bytes"`
}

// Phase is a part of a migration, by the source's clock. Phases follow each other without gap or
// overlap: all of them add up to the total time, and those with Downtime to the downtime.
type Phase struct {
	Name         string  `json:"name"`
	StartSeconds float64 `json:"start_seconds"` // since the request
	Seconds      float64 `json:"seconds"`
	Node         string  `json:"node"`
	Downtime     bool    `json:"downtime"`
}

// Round is one pass of a pre-copy.
type Round struct {
	Pages          int64 `json:"pages"`           // found and sent, of which…
	ZeroPages      int64 `json:"zero_pages"`      // …were zero
	ReferencePages int64 `json:"reference_pages"` // …had content that the target had elsewhere
	DeltaPages     int64 `json:"delta_pages"`     // …went as a difference to what was sent before
	// written or examined, but equal to the target's copy; not sent
	UnchangedPages int64 `json:"unchanged_pages"`
	// of shared memory: examined because it was not known whether they were written
	ComparedPages int64 `json:"compared_pages"`
	RawBytes      int64 `json:"raw_bytes"`  // of the pages
	SentBytes     int64 `json:"sent_bytes"` // on the wire
	// bytes of memory written since the previous round began, which may have sent some of them
	WrittenBytes int64   `json:"written_bytes"`
	Seconds      float64 `json:"seconds"`
	// StoppedSeconds is the longest time that a process was stopped in this round, to attach to it.
	StoppedSeconds float64 `json:"stopped_seconds"`
	// ExpectedDowntimeSeconds is the downtime of a switchover right after this round.
	ExpectedDowntimeSeconds float64 `json:"expected_downtime_seconds"`
	Final                   bool    `json:"final"` // sent in the freeze
}

// FileRound is one pass over the container's files.
type FileRound struct {
	Entries        int64 `json:"entries"`         // files of all types, of which…
	ChangedEntries int64 `json:"changed_entries"` // …were new, changed or gone
	SentBytes      int64 `json:"sent_bytes"`      // content that the target lacked, before compression
	ReadBytes      int64 `json:"read_bytes"`      // content that was read to find the changes
	KeptBytes      int64 `json:"kept_bytes"`      // content that the target had from an earlier attempt
	// files that may have changed unnoticed, and are read again in the next pass
	UnsettledFiles int64   `json:"unsettled_files"`
	UnsettledBytes int64   `json:"unsettled_bytes"` // of them
	ScanSeconds    float64 `json:"scan_seconds"`    // of the time, to find the changes
	// until the files were in place at the target; in the freeze: until they were sent
	Seconds float64 `json:"seconds"`
	Final   bool    `json:"final"` // in the freeze: the first beside the dump, the second after it
}

// ThrottleStep is a period in which the container's processor time was limited.
type ThrottleStep struct {
	AfterRounds int     `json:"after_rounds"`
	CPUs        float64 `json:"cpus"`
	Seconds     float64 `json:"seconds"`
}

// Push describes the post-copy push: the pages that came after the container had begun to run at the
// target. Faults and waiting times are the target's latest.
type Push struct {
	RemotePages int64 `json:"late_pages"`   // pages that stayed at the source
	LeftPages   int64 `json:"left_pages"`   // pages that have not come yet
	LostPages   int64 `json:"lost_pages"`   // pages that were given up: accesses to them fail
	UrgentPages int64 `json:"urgent_pages"` // pages that came because a process waited for them
	PushedPages int64 `json:"pushed_pages"` // pages that came without a request

	// pages for which a process waited while they were at the source
	Faults              int64   `json:"faults"`
	FaultMedianSeconds  float64 `json:"fault_median_seconds"`
	FaultP99Seconds     float64 `json:"fault_p99_seconds"`
	FaultMaximumSeconds float64 `json:"fault_maximum_seconds"`
	WaitedSeconds       float64 `json:"waited_seconds"` // by all threads together
	// share of the push's time in which at least one thread waited
	WaitingShare float64 `json:"waiting_share"`
	Seconds      float64 `json:"seconds"` // from the resume until all pages were there, or now
	// how often the two connections were opened: more than once if they broke
	Connections int `json:"connections"`

	// Spill is the state of these pages' copy on the source's disk; empty: none was requested, as far as is
	// known.
	Spill SpillState `json:"spill,omitempty"`
}

// SpillState says whether the source's disk has a copy of the remote pages.
type SpillState string

// The states.
const (
	SpillWriting  SpillState = "writing"  // a reboot of the source would lose pages
	SpillComplete SpillState = "complete" // on its disk, and the target has the key: a reboot loses none
	SpillServing  SpillState = "serving"  // the source was rebooted, and reads the pages from its disk
	SpillFailed   SpillState = "failed"   // there is no copy; the report says why
)

// Bytes are the bytes sent, on the wire, by kind.
type Bytes struct {
	MemoryPrecopy int64 `json:"memory_precopy"`
	MemoryFinal   int64 `json:"memory_final"`
	MemoryFaulted int64 `json:"memory_faulted"`
	MemoryPushed  int64 `json:"memory_pushed"`
	FilesPrecopy  int64 `json:"files_precopy"`
	FilesFinal    int64 `json:"files_final"`
	// FilesKept are bytes that were not sent: the target had them from an earlier attempt that failed.
	FilesKept int64 `json:"files_kept"`
	Layers    int64 `json:"layers"`
	Metadata  int64 `json:"metadata"`
	// MemoryRaw is the size of the memory and execution state before any reduction: whole pages, including
	// pages that are zero or that the target has elsewhere. Pages that follow after the handover are not
	// included.
	MemoryRaw int64 `json:"memory_raw"`
	// Uncompressed is the size of everything on the wire without compression.
	Uncompressed int64 `json:"uncompressed"`
}

// LinkSeen is the path between the nodes, as measured.
type LinkSeen struct {
	BandwidthBitsPerSecond float64 `json:"bandwidth_bits_per_second"`
	RTTSeconds             float64 `json:"rtt_seconds"`
	// LimitBitsPerSecond is the user's limit at the beginning. 0: none.
	LimitBitsPerSecond float64 `json:"limit_bits_per_second,omitempty"`
}

// Held describes the packets that arrived during the switchover.
type Held struct {
	Packets int64 `json:"packets"`
	Bytes   int64 `json:"bytes"`
	Dropped int64 `json:"dropped"`
	// LongestSeconds is an upper bound of the time that one packet waited. A packet that opens a connection
	// may wait from before the freeze.
	LongestSeconds float64 `json:"longest_seconds"`
}

// Facts are a node's knowledge of a migration beside the machine's record.
type Facts struct {
	Requested  Mode          // auto, if the mode was chosen here
	Frozen     time.Time     // by the source's clock; zero: the record's begin of the freeze counts
	Ahead      time.Duration // of the target's clock before the source's
	AheadMay   time.Duration // by how much that can be wrong
	Link       LinkSeen
	Bytes      Bytes
	Held       Held
	Rounds     []Round
	FileRounds []FileRound
	Decisions  []string
	Throttles  []ThrottleStep
	// DirtyingRate is the bytes of memory per second that the container modified, as the last round
	// measured it.
	DirtyingRate float64
	MemoryGrowth int64 // bytes
	Layers       *Layers
	Push         *Push
	Volumes      []VolumeMoved
}

// NewReport makes a node's report from its record and its facts. At is now: the end, if the migration has
// ended. The source's report is complete; the target knows only its own part, by its own clock, until the
// source sends its report.
func NewReport(rec Record, facts Facts, at time.Time) Report {
	spec := rec.Spec
	report := Report{
		Migration: spec.ID, Container: spec.Name, Source: spec.Source, Target: spec.Target, Mode: spec.Mode,
		Requested: facts.Requested,
		Result:    rec.Result, Alarm: rec.Alarm, Problems: slices.Clone(rec.Problems),
		Notes: slices.Clone(rec.Notes), Started: spec.Started,
		Rounds: append([]Round{}, facts.Rounds...), FileRounds: append([]FileRound{}, facts.FileRounds...),
		Bytes: facts.Bytes, Link: facts.Link, Held: facts.Held, Decisions: slices.Clone(facts.Decisions),
		Throttles: slices.Clone(facts.Throttles), DirtyingRateBytesPerSecond: facts.DirtyingRate,
		MemoryGrowthBytes: facts.MemoryGrowth, Volumes: slices.Clone(facts.Volumes), Layers: facts.Layers,
	}
	if facts.Push != nil {
		push := *facts.Push
		report.Push = &push
		if push.RemotePages > 0 {
			report.SplitSeconds = push.Seconds
		}
	}
	if rec.State == InDoubt {
		report.Result = ResultDoubt
	}
	if rec.Error != "" {
		report.Error = &rec.Error
	}
	line := newTimeline(rec, facts, at)
	report.Phases = line.phases()
	report.TotalSeconds = line.total()
	if !line.resumed.IsZero() {
		report.HandoffSeconds = max(0, line.since(line.resumed))
		report.DowntimeSeconds = line.downtime()
		report.DowntimeErrorSeconds = facts.AheadMay.Seconds()
	} else if thawed := endOf(rec.Spans, UndoFreeze, UndoStop); !facts.Frozen.IsZero() &&
		thawed.After(facts.Frozen) {
		report.DowntimeSeconds = thawed.Sub(facts.Frozen).Seconds() // it stood still, and runs where it was
	}
	return report
}

// endOf returns when the last span of these undos ended; zero if there is none.
func endOf(spans []Span, undos ...StepName) (end time.Time) {
	for _, span := range spans {
		if slices.Contains(undos, StepName(span.Phase)) {
			end = span.End
		}
	}
	return end
}
