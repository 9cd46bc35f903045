package memory

import "time"

// RoundStats is what one round did.
type RoundStats struct {
	Number         int
	Final          bool // in the freeze
	Tasks          int
	Pages          uint64 // sent, of which…
	ZeroPages      uint64 // …were zero and cost nothing
	UnchangedPages uint64 // reported as written, or read again, and not sent
	// ComparedPages were read and compared only because it could not be known otherwise that nobody
	// had written to them: those of shared memory.
	ComparedPages uint64
	// Unseen says why, in the freeze.
	Unseen string
	Gone   uint64 // pages that went away before they were read
	// RemotePages were found written and stay for later: Source.Leave.
	RemotePages uint64
	// TakenAlong are pages that were written since the round before began and left in that one; and
	// Early are pages that were sent and were only written since this one began. A round takes
	// along what is written before its turn.
	TakenAlong, Early uint64
	// SentBytes is what they are to the link. A round puts the content of those that are not zero
	// there; whoever has a sink that makes it less replaces it by what really left, before Decide
	// looks at it.
	SentBytes uint64
	Scan      time.Duration
	Read      time.Duration
	Write     time.Duration // how long the sink took
	Duration  time.Duration
	// Interval is the time since the previous round began: in it was written what Written tells. 0
	// in the first round.
	Interval time.Duration
	Stopped  time.Duration // the longest that a process was stopped, to attach to it
	Attached int           // processes that are new in this round
	Tracking Tracking      // how processes are tracked, unless Refused says otherwise
	Refused  []Refusal     // processes that are tracked in another way
}

// Refusal is a process that cannot be tracked as the others are.
type Refusal struct {
	PID     int
	Task    Task
	Name    string
	Reason  string
	Instead Tracking // what is done instead
}

// Bytes is how much memory was sent.
func (s RoundStats) Bytes() uint64 { return s.Pages * uint64(PageSize()) }

func (s RoundStats) contentBytes() uint64 { return (s.Pages - s.ZeroPages) * uint64(PageSize()) }

// Written is how many bytes of memory were written since the round before began, each page counted
// once; 0 in the first round.
func (s RoundStats) Written() uint64 {
	if s.Interval <= 0 {
		return 0
	}
	pages := s.Pages + s.RemotePages + s.TakenAlong
	return (pages - min(pages, s.Early)) * uint64(PageSize())
}

// DirtyingRate is the bytes of memory per second that the container modifies, as this round saw it;
// 0 in the first one.
func (s RoundStats) DirtyingRate() float64 {
	if s.Interval <= 0 {
		return 0
	}
	return float64(s.Written()) / s.Interval.Seconds()
}
