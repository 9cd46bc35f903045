package placement

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Policy holds a user's wishes and their results so far. It belongs to one container and travels with it.
type Policy struct {
	Container      string    `json:"container"`        // its id
	Engine         string    `json:"engine,omitempty"` // of the container at its node; empty: the node's own
	Path           []Stop    `json:"path,omitempty"`
	Nearest        int       `json:"nearest,omitempty"`
	BudgetBytes    int64     `json:"budget_bytes,omitempty"` // of memory for all copies; 0: no limit
	BandwidthLimit float64   `json:"bandwidth_limit_bits_per_second,omitempty"`
	Until          time.Time `json:"until"` // no copies from then on
	Copies         []Copy    `json:"copies,omitempty"`
}

// Stop is a node to which the container will move, and when it may arrive.
type Stop struct {
	Node     string    `json:"node"`
	Deadline time.Time `json:"deadline"`
}

// Copy is a copy, or an attempt to make one, at a node.
type Copy struct {
	Node  string `json:"node"`
	Bytes int64  `json:"memory_bytes"` // size there
	// Fresh is the time of the copy's contents; zero: there is no complete copy.
	Fresh     time.Time `json:"fresh,omitzero"`
	Seconds   float64   `json:"seconds"`    // duration of its last round
	SentBytes int64     `json:"sent_bytes"` // for the copy, in total
	Tried     time.Time `json:"tried,omitzero"`
	Failures  int       `json:"failures,omitempty"` // since the last success
	// how often its node did not keep the idle copy, since it last did
	Unkept int    `json:"unkept,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Bounds of a policy.
const (
	MaxStops   = 64
	MaxNearest = 16
	MaxError   = 1 << 10 // bytes of a text
	MaxBytes   = 1 << 50 // of a copy
	maxCopies  = MaxStops + MaxNearest
	maxName    = 64
	// maxAway is how far from now any time may be. No time of an existing copy is in the future, but clocks
	// are set.
	maxAway   = 366 * 24 * time.Hour
	maxFuture = time.Hour
)

// Check refuses an invalid policy of a user or another node.
func (p Policy) Check(now time.Time) error {
	switch {
	case len(p.Path) == 0 && p.Nearest == 0:
		return errors.New("give a path or a number of neighbours")
	case len(p.Path) > 0 && p.Nearest != 0:
		return errors.New("a path and a number of neighbours exclude each other: give one of them")
	case len(p.Path) > MaxStops:
		return fmt.Errorf("a path of %d nodes: at most %d", len(p.Path), MaxStops)
	case p.Nearest < 0 || p.Nearest > MaxNearest:
		return fmt.Errorf("copies at %d neighbours: from 1 to %d", p.Nearest, MaxNearest)
	case len(p.Engine) > maxName:
		return fmt.Errorf("no engine has the name %.80q", p.Engine)
	case p.BudgetBytes < 0:
		return errors.New("a budget must not be negative")
	case len(p.Path) > 0 && p.BudgetBytes > 0:
		return errors.New("a budget applies to copies at neighbours, not to a path")
	case !(p.BandwidthLimit >= 0):
		return errors.New("a limit of bandwidth must not be negative")
	case !p.Until.After(now):
		return errors.New("its time is over")
	case !within(p.Until, now, maxAway):
		return errors.New("it is for more than a year")
	case len(p.Copies) > maxCopies:
		return fmt.Errorf("%d copies", len(p.Copies))
	}
	for i, stop := range p.Path {
		if err := checkName(stop.Node); err != nil {
			return err
		}
		if !within(stop.Deadline, now, maxAway) {
			return fmt.Errorf("the deadline of %s is more than a year away", stop.Node)
		}
		if i > 0 && stop.Deadline.Before(p.Path[i-1].Deadline) {
			return errors.New("the path is not in the order of time")
		}
	}
	for i, c := range p.Copies {
		if err := c.check(now); err != nil {
			return err
		}
		if slices.ContainsFunc(p.Copies[:i], func(other Copy) bool { return other.Node == c.Node }) {
			return fmt.Errorf("two copies at %s", c.Node)
		}
	}
	return nil
}

func checkName(node string) error {
	if node == "" || len(node) > maxName {
		return fmt.Errorf("no node has the name %.80q", node)
	}
	return nil
}

// within reports whether a time is not further than most from now, before or after it.
func within(t, now time.Time, most time.Duration) bool { return t.Sub(now).Abs() <= most }

func (c Copy) check(now time.Time) error {
	numbers := c.Bytes >= 0 && c.Bytes <= MaxBytes && c.SentBytes >= 0 && c.Seconds >= 0 &&
		c.Seconds <= maxAway.Seconds() &&
		c.Failures >= 0 && c.Unkept >= 0 && len(c.Error) <= MaxError
	if !numbers || !c.happened(c.Fresh, now) || !c.happened(c.Tried, now) {
		return fmt.Errorf("the copy at %.80q is not possible", c.Node)
	}
	return checkName(c.Node)
}

// happened reports whether a time of a copy is plausible or unknown.
func (c Copy) happened(t, now time.Time) bool {
	return t.IsZero() || within(t, now, maxAway) && t.Sub(now) <= maxFuture
}

// Sort sorts the path by time, and refuses a deadline that is past.
func (p *Policy) Sort(now time.Time) error {
	slices.SortStableFunc(p.Path, func(a, b Stop) int { return a.Deadline.Compare(b.Deadline) })
	for _, stop := range p.Path {
		if !stop.Deadline.After(now) {
			return fmt.Errorf("the deadline of %s is past, by %s", stop.Node,
				now.Sub(stop.Deadline).Round(time.Second))
		}
	}
	return nil
}

// Arrive notes that the container has arrived at a node: the path before it is done, and that node has no
// copy any more.
func (p *Policy) Arrive(node string) {
	p.Forget(node)
	for i, stop := range p.Path {
		if stop.Node == node {
			p.Path = p.Path[i+1:]
			return
		}
	}
}

// Shift moves all times, for a different clock.
func (p *Policy) Shift(by time.Duration) {
	p.Until = p.Until.Add(by)
	for i := range p.Path {
		p.Path[i].Deadline = p.Path[i].Deadline.Add(by)
	}
	for i := range p.Copies {
		for _, t := range []*time.Time{&p.Copies[i].Fresh, &p.Copies[i].Tried} {
			if !t.IsZero() {
				*t = t.Add(by)
			}
		}
	}
}

// At returns the copy at a node; nil: none was tried.
func (p Policy) At(node string) *Copy {
	for i := range p.Copies {
		if p.Copies[i].Node == node {
			return &p.Copies[i]
		}
	}
	return nil
}

// Make returns the copy at a node, and adds one if there is none.
func (p *Policy) Make(node string) *Copy {
	if have := p.At(node); have != nil {
		return have
	}
	p.Copies = append(p.Copies, Copy{Node: node})
	return &p.Copies[len(p.Copies)-1]
}

// With returns the policy with another copy; a copy without a node is ignored.
func (p Policy) With(c Copy) Policy {
	p = p.Clone()
	if c.Node != "" {
		*p.Make(c.Node) = c
	}
	return p
}

// Kept notes what the node of an idle copy reports about the copy.
func (c *Copy) Kept(bytes int64, whole bool) {
	c.Bytes = bytes
	if whole {
		c.Unkept = 0
	} else {
		c.Fresh = time.Time{}
	}
}

// Forget removes the copy at a node from the policy.
func (p *Policy) Forget(node string) {
	p.Copies = slices.DeleteFunc(p.Copies, func(c Copy) bool { return c.Node == node })
}

// Returns reports whether the container may come back to a node that it leaves, so that its memory is worth
// keeping there.
func (p Policy) Returns(node string) bool {
	return p.Nearest > 0 || slices.ContainsFunc(p.Path, func(s Stop) bool { return s.Node == node })
}

// Clone returns a policy that shares nothing with this one.
func (p Policy) Clone() Policy {
	p.Path, p.Copies = slices.Clone(p.Path), slices.Clone(p.Copies)
	return p
}

func (c *Copy) whole() bool { return c != nil && !c.Fresh.IsZero() }
