package memory

import "time"

// RoundStats describes a round.
type RoundStats struct {
	Number         int
	Final          bool // in the freeze
	Tasks          int
	Pages          uint64 // sent, of which…
	ZeroPages      uint64 // …were zero and cost nothing
	UnchangedPages uint64 // reported as written, or read again, but not sent
	// ComparedPages were read and compared only because there was no other way to know whether they were
	// written: pages of shared memory.
	ComparedPages uint64
	// Unseen says why, during the freeze.
	Unseen string
	Gone   uint64 // pages that vanished before they were read
	// RemotePages were found written and stay for later: Source.Leave.
	RemotePages uint64
	// TakenAlong are pages that were written since the previous round began and were sent in that one.
	// Early are pages that were sent and were only written since this one began. A round also sends what is
	// written before its turn.
	TakenAlong, Early uint64
	// SentBytes is the size on the link. A round sets it to the content of nonzero pages. If a sink reduces
	// that, its user replaces the value by what really left, before Decide reads it.
	SentBytes uint64
	Scan      time.Duration
	Read      time.Duration
	Write     time.Duration // how long the sink took
	Duration  time.Duration
	// Interval is the time since the previous round began, in which Written was written. 0 in the first
	// round.
	Interval time.Duration
	RoundTracking
}

// RoundTracking is how the processes were tracked in a round.
type RoundTracking struct {
	Stopped  time.Duration // the longest stop of a process, to attach to it
	Attached int           // processes that are new in this round
	Tracking Tracking      // of all processes except those in Refused
	Refused  []Refusal     // processes that are tracked in another way
}

// Refusal is a process that cannot be tracked like the others.
type Refusal struct {
	PID     int
	Task    Task
	Name    string
	Reason  string
	Instead Tracking // the way used instead
}

// Bytes returns how much memory was sent.
func (s RoundStats) Bytes() uint64 { return s.Pages * uint64(PageSize()) }

func (s RoundStats) contentBytes() uint64 { return (s.Pages - s.ZeroPages) * uint64(PageSize()) }

// Written returns how many bytes of memory were written since the previous round began, each page counted
// once; 0 in the first round.
func (s RoundStats) Written() uint64 {
	if s.Interval <= 0 {
		return 0
	}
	pages := s.Pages + s.RemotePages + s.TakenAlong
	return (pages - min(pages, s.Early)) * uint64(PageSize())
}

// DirtyingRate is the rate, in bytes of memory per second, at which the container modified memory in this
// round; 0 in the first.
func (s RoundStats) DirtyingRate() float64 {
	if s.Interval <= 0 {
		return 0
	}
	return float64(s.Written()) / s.Interval.Seconds()
}
