package migration

import "time"

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

// Phase is a part of a migration, by the source's clock. Those from freeze to resume follow each other without gaps:
// their sum is the downtime.
type Phase struct {
	Name         string  `json:"name"`
	StartSeconds float64 `json:"start_seconds"` // since the request
	Seconds      float64 `json:"seconds"`
	Node         string  `json:"node"`
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
	Frozen    time.Time     // by the source's clock
	Ahead     time.Duration // of the target's clock before the source's
	AheadMay  time.Duration // by how much that can be wrong
	Link      LinkSeen
	Bytes     Bytes
	Held      Held
	Decisions []string
}

// NewReport makes the report of the source from its record and its facts. At is now.
func NewReport(rec Record, facts Facts, at time.Time) Report {
	spec := rec.Spec
	report := Report{
		Migration: spec.ID, Container: spec.Name, Source: spec.Source, Target: spec.Target, Mode: spec.Mode,
		Result: rec.Result, Problems: rec.Problems, Notes: rec.Notes, Started: spec.Started,
		TotalSeconds: at.Sub(spec.Started).Seconds(), Phases: []Phase{}, Rounds: []Round{},
		Bytes: facts.Bytes, Link: facts.Link, Held: facts.Held, Decisions: facts.Decisions,
	}
	if rec.State == InDoubt {
		report.Result = ResultDoubt
	}
	if rec.Error != "" {
		report.Error = &rec.Error
	}
	clock := reportClock{began: spec.Started, ahead: facts.Ahead}
	if !rec.Resumed.IsZero() && !facts.Frozen.IsZero() {
		resumed := rec.Resumed.Add(-facts.Ahead)
		report.HandoffSeconds = clock.since(resumed)
		report.DowntimeSeconds = resumed.Sub(facts.Frozen).Seconds()
		report.DowntimeErrorSeconds = facts.AheadMay.Seconds()
	}
	report.Phases = clock.phases(rec, facts)
	return report
}

// reportClock turns both nodes' times into seconds since the request.
type reportClock struct {
	began time.Time
	ahead time.Duration
}

func (c reportClock) since(t time.Time) float64 { return t.Sub(c.began).Seconds() }

// phases lists what happened when. The freeze's steps meet at the instants that matter: all stopped, all written, all
// sent, all there, running.
func (c reportClock) phases(rec Record, facts Facts) []Phase {
	phases := []Phase{}
	add := func(name, node string, from, to time.Time) {
		phases = append(phases, Phase{Name: name, Node: node, StartSeconds: c.since(from), Seconds: max(0, to.Sub(from).Seconds())})
	}
	at := facts.Frozen // the end of the last phase of the switchover
	for _, span := range rec.Spans {
		switch span.Phase {
		case "freeze":
			if facts.Frozen.IsZero() {
				add(span.Phase, rec.Spec.Source, span.Start, span.End)
				continue
			}
			add("stop", rec.Spec.Source, span.Start, facts.Frozen)
			add("freeze", rec.Spec.Source, facts.Frozen, span.End)
			at = span.End
		case "dump", "transfer":
			add(span.Phase, rec.Spec.Source, at, span.End)
			at = span.End
		default:
			add(span.Phase, rec.Spec.Source, span.Start, span.End)
		}
	}
	for _, span := range rec.PeerSpans {
		from, to := span.Start.Add(-c.ahead), span.End.Add(-c.ahead)
		switch span.Phase {
		case "receive":
			add("arrive-last", rec.Spec.Target, at, to)
			at = to
		case "restore":
			add("restore", rec.Spec.Target, at, to)
		default:
			add(span.Phase, rec.Spec.Target, from, to)
		}
	}
	return phases
}
