package migration

import (
	"slices"
	"time"
)

// Report is what a migration leaves on both nodes, and what users and programs read. See DESIGN for the fields.
type Report struct {
	Migration string  `json:"migration"`
	Container string  `json:"container"`
	Source    string  `json:"source"`
	Target    string  `json:"target"`
	Mode      Mode    `json:"mode"`
	Result    Result  `json:"result"`
	Error     *string `json:"error"`
	// Problems are the refusals, if it was refused.
	Problems []Problem `json:"problems,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	Started  time.Time `json:"started"`

	HandoffSeconds       float64 `json:"handoff_seconds"`
	TotalSeconds         float64 `json:"total_seconds"`
	DowntimeSeconds      float64 `json:"downtime_seconds"`
	DowntimeErrorSeconds float64 `json:"downtime_error_seconds"` // of comparing two clocks

	Phases    []Phase  `json:"phases"`
	Rounds    []Round  `json:"rounds"`
	Bytes     Bytes    `json:"bytes"`
	Link      LinkSeen `json:"link"`
	Held      Held     `json:"held"`
	Decisions []string `json:"decisions,omitempty"`

	DirtyingRateBytesPerSecond float64 `json:"dirtying_rate_bytes_per_second"`
}

// Phase is a part of a migration, by the source's clock. Phases follow each other without gap or overlap: all of them
// add up to the total time, and those with Downtime to the downtime.
type Phase struct {
	Name         string  `json:"name"`
	StartSeconds float64 `json:"start_seconds"` // since the request
	Seconds      float64 `json:"seconds"`
	Node         string  `json:"node"`
	Downtime     bool    `json:"downtime"`
}

// Round is one pass of a pre-copy.
type Round struct {
	Pages     int64   `json:"pages"`
	RawBytes  int64   `json:"raw_bytes"`
	SentBytes int64   `json:"sent_bytes"`
	Seconds   float64 `json:"seconds"`
}

// Bytes are what was sent, on the wire, by what it was.
type Bytes struct {
	MemoryPrecopy int64 `json:"memory_precopy"`
	MemoryFinal   int64 `json:"memory_final"`
	MemoryFaulted int64 `json:"memory_faulted"`
	MemoryPushed  int64 `json:"memory_pushed"`
	FilesPrecopy  int64 `json:"files_precopy"`
	FilesFinal    int64 `json:"files_final"`
	Layers        int64 `json:"layers"`
	Metadata      int64 `json:"metadata"`
	// MemoryRaw is what the memory and execution state are before compression.
	MemoryRaw int64 `json:"memory_raw"`
}

// LinkSeen is the way between the nodes, as it was measured.
type LinkSeen struct {
	BandwidthBitsPerSecond float64 `json:"bandwidth_bits_per_second"`
	RTTSeconds             float64 `json:"rtt_seconds"`
}

// Held is what became of the packets that came during the switchover.
type Held struct {
	Packets int64 `json:"packets"`
	Bytes   int64 `json:"bytes"`
	Dropped int64 `json:"dropped"`
}

// Facts are what a node knows of a migration beside the machine's record.
type Facts struct {
	Frozen    time.Time     // by the source's clock; zero: the record's begin of the freeze counts
	Ahead     time.Duration // of the target's clock before the source's
	AheadMay  time.Duration // by how much that can be wrong
	Link      LinkSeen
	Bytes     Bytes
	Held      Held
	Decisions []string
}

// NewReport makes a node's report from its record and its facts. At is now: the end, if the migration has ended. The
// source's is the whole; the target knows only its own part, by its own clock, until the source sends its report.
func NewReport(rec Record, facts Facts, at time.Time) Report {
	spec := rec.Spec
	report := Report{
		Migration: spec.ID, Container: spec.Name, Source: spec.Source, Target: spec.Target, Mode: spec.Mode,
		Result: rec.Result, Problems: slices.Clone(rec.Problems), Notes: slices.Clone(rec.Notes), Started: spec.Started,
		Rounds: []Round{}, Bytes: facts.Bytes, Link: facts.Link, Held: facts.Held, Decisions: slices.Clone(facts.Decisions),
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
	} else if thawed := endOf(rec.Spans, string(UndoFreeze)); !facts.Frozen.IsZero() && thawed.After(facts.Frozen) {
		report.DowntimeSeconds = thawed.Sub(facts.Frozen).Seconds() // it stood still, and runs where it was
	}
	return report
}

// endOf is when the last span of a phase ended; zero if there is none.
func endOf(spans []Span, phase string) (end time.Time) {
	for _, span := range spans {
		if span.Phase == phase {
			end = span.End
		}
	}
	return end
}
