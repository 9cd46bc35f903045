package placement

import (
	"math"
	"slices"
	"time"
)

// Situation is what there is.
type Situation struct {
	Now         time.Time
	Node        string // where the container runs
	Live        string // the node whose copy is live; empty: none
	MemoryBytes int64  // that a copy takes
	Busy        bool   // migrations of this node are under way
	Nodes       []Node // the others
}

// Node is another node, and the way to it.
type Node struct {
	Name      string
	Reachable bool
	RTT       time.Duration
	Bandwidth float64 // bits per second; 0: not known
	Need      Cost    // until the copy there is up to date, if that begins now
}

// Cost is what something is predicted to take.
type Cost struct {
	Seconds, High float64 // expected, and at worst
	Bytes         float64
}

// Decision says what to do now.
type Decision struct {
	Live    string   // the node whose copy is live from now on: all others are idle; empty: none
	Round   bool     // bring it up to date now. A copy that is not live yet does so by becoming it
	Rate    float64  // bits per second that it may take; 0: no limit
	Drop    []string // the nodes whose copies go
	Over    string   // why it has come to its end; empty: it has not
	Targets []Target // where copies are wanted, the next one first
}

// Target is a node at which a copy is wanted.
type Target struct {
	Node     string
	Deadline time.Time // zero: none
	// when it is begun, or brought up to date, if the container is still here then; zero: it is
	// there
	Begin   time.Time
	From    string // the node at which the container will be then; empty: here
	Outlook Outlook
	Late    time.Duration // for Late
	Need    Cost

	by time.Time // when it has to be whole
}

// Outlook says whether a deadline is met.
type Outlook string

// The outlooks.
const (
	NoDeadline  Outlook = ""
	InTime      Outlook = "in time"
	MayBeLate   Outlook = "may be late"
	Late        Outlook = "late"
	Unreachable Outlook = "cannot be reached"
	There       Outlook = "there" // it is, and is brought up to date in time
)

const (
	slack = 3.0 // times what a copy is predicted to take at worst is when it is begun
	tight = 1.5 // times that have to be between two stops, or the copy at the second is not left to the first
	// lead is when a copy is brought up to date for the last time before a deadline, beside what that takes.
	lead = time.Second
	// Rounds take a tenth of the time, and are so far apart at least: right before a deadline,
	// after it, and at neighbours.
	rest         = 9
	pauseBefore  = time.Second
	pauseAfter   = 2 * time.Second
	pauseNearest = 10 * time.Second
	// What failed is tried again, ever less often.
	firstRetry, lastRetry = time.Second, time.Minute
	leastRate             = 1e6 // bits per second
)

// Decide decides what to do now.
func (p Policy) Decide(s Situation) Decision {
	switch {
	case !s.Now.Before(p.Until):
		return Decision{Over: "its time is over"}
	case p.Nearest > 0:
		return p.decideNearest(s)
	}
	stops := p.upcoming(s)
	if len(stops) == 0 {
		return Decision{Over: "the container is where its path ends"}
	}
	return p.decidePath(s, stops)
}

func (s Situation) node(name string) Node {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n
		}
	}
	return Node{Name: name}
}

// mayTry tells whether it is time to try again what has failed.
func (p Policy) mayTry(node string, now time.Time) bool {
	c := p.At(node)
	if c == nil || c.Failures == 0 {
		return true
	}
	wait := min(lastRetry, firstRetry<<min(c.Failures-1, 16))
	return !now.Before(c.Tried.Add(wait))
}

// ended is when the last round at a node had ended.
func (c *Copy) ended() time.Time { return c.Fresh.Add(seconds(c.Seconds)) }

// rested tells whether it is long enough ago.
func (c *Copy) rested(now time.Time, pause time.Duration, times float64) bool {
	return !now.Before(c.ended().Add(max(pause, seconds(times*c.Seconds))))
}

func seconds(s float64) time.Duration {
	if !(s > 0) {
		return 0
	}
	return time.Duration(min(s, math.MaxInt64/4e9) * float64(time.Second))
}

// limited is a rate within what the user allows.
func (p Policy) limited(rate float64) float64 {
	if p.BandwidthLimit > 0 && (rate == 0 || rate > p.BandwidthLimit) {
		return p.BandwidthLimit
	}
	return rate
}

// unwanted are the copies at nodes at which none is wanted.
func (p Policy) unwanted(wanted func(node string) bool) []Copy {
	return slices.DeleteFunc(slices.Clone(p.Copies), func(c Copy) bool { return wanted(c.Node) })
}
