package placement

import (
	"math"
	"slices"
	"time"
)

// Situation is the current state of nodes and copies.
type Situation struct {
	Now         time.Time
	Node        string // where the container runs
	Live        string // the node whose copy is live; empty: none
	MemoryBytes int64  // of a copy
	Busy        bool   // migrations of this node are under way
	Nodes       []Node // the other nodes
}

// Node is another node, and the path to it.
type Node struct {
	Name      string
	Reachable bool
	RTT       time.Duration
	Bandwidth float64 // bits per second; 0: not known
	Need      Cost    // until the copy there is up to date, if the work begins now
}

// Cost is the predicted cost of an operation.
type Cost struct {
	Seconds, High float64 // expected, and at worst
	Bytes         float64
}

// Decision says what the agent should do now.
type Decision struct {
	Live    string   // the node whose copy is live from now on: all others are idle; empty: none
	Round   bool     // bring it up to date now. A copy that becomes live does so anyway
	Rate    float64  // limit in bits per second; 0: no limit
	Drop    []string // the nodes whose copies are removed
	Over    string   // why the policy has ended; empty: it has not
	Targets []Target // where copies are wanted, the next one first
}

// Target is a node at which a copy is wanted.
type Target struct {
	Node     string
	Deadline time.Time // zero: none
	// when the copy is begun, or brought up to date, if the container is still here then; zero: the copy is
	// already there
	Begin   time.Time
	From    string // the node at which the container will be then; empty: here
	Outlook Outlook
	Late    time.Duration // for Late
	Need    Cost

	by time.Time // when the copy has to be complete
}

// Outlook says whether a copy meets its deadline.
type Outlook string

// The outlooks.
const (
	NoDeadline  Outlook = ""
	InTime      Outlook = "in time"
	MayBeLate   Outlook = "may be late"
	Late        Outlook = "late"
	Unreachable Outlook = "cannot be reached"
	There       Outlook = "there" // the copy is there, and is brought up to date in time
)

const (
	slack = 3.0 // a copy is begun this many times its worst predicted duration ahead
	tight = 1.5 // two stops closer than this many times: the first node does not make the second copy
	// lead is how long before a deadline the last round ends.
	lead = time.Second
	// Rounds take a tenth of the time, and have these minimum distances: right before a deadline, after it,
	// and at neighbours.
	rest         = 9
	pauseBefore  = time.Second
	pauseAfter   = 2 * time.Second
	pauseNearest = 10 * time.Second
	// Failed attempts are repeated, ever less often.
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

// mayTry reports whether it is time to retry a failed attempt.
func (p Policy) mayTry(node string, now time.Time) bool {
	c := p.At(node)
	if c == nil || c.Failures == 0 {
		return true
	}
	wait := min(lastRetry, firstRetry<<min(c.Failures-1, 16))
	return !now.Before(c.Tried.Add(wait))
}

// ended returns when the last round at a node ended.
func (c *Copy) ended() time.Time { return c.Fresh.Add(seconds(c.Seconds)) }

// rested reports whether the last round ended long enough ago.
func (c *Copy) rested(now time.Time, pause time.Duration, times float64) bool {
	return !now.Before(c.ended().Add(max(pause, seconds(times*c.Seconds))))
}

func seconds(s float64) time.Duration {
	if !(s > 0) {
		return 0
	}
	return time.Duration(min(s, math.MaxInt64/4e9) * float64(time.Second))
}

// limited returns a rate within the user's limit.
func (p Policy) limited(rate float64) float64 {
	if p.BandwidthLimit > 0 && (rate == 0 || rate > p.BandwidthLimit) {
		return p.BandwidthLimit
	}
	return rate
}

// unwanted returns the copies at nodes where no copy is wanted.
func (p Policy) unwanted(wanted func(node string) bool) []Copy {
	return slices.DeleteFunc(slices.Clone(p.Copies), func(c Copy) bool { return wanted(c.Node) })
}
