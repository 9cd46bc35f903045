package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/controller/store"
)

const (
	firstRetry = 10 * time.Second
	maxRetry   = 10 * time.Minute
	// failuresGoodFor is when a failure is forgotten. The container and its targets may be others by then.
	failuresGoodFor = time.Hour
	// maxTried bounds the targets that are remembered for a container.
	maxTried = 16
	// moreRoom is how much more memory must be free for a node to have changed.
	moreRoom = 256 << 20
)

// failure keeps a container that did not move from being tried again at once, and at the same node.
type failure struct {
	count int
	at    time.Time
	tried map[string]attempt // by target
}

// failures are what is remembered of containers that did not move, by container.
type failures map[string]failure

// attempt is a move that failed.
type attempt struct {
	at      time.Time
	refused bool // before anything moved
	target  traits
}

// traits are what may make a node accept a container that it refused.
type traits struct {
	connected time.Time // an agent that starts may have another policy, or more engines
	version   string
	state     store.NodeState
	labels    string
	free      int64
}

func (c *cluster) traits(name string) traits {
	node := c.state.Nodes[name]
	t := traits{state: node.State, labels: fmt.Sprint(node.Labels)} // fmt sorts the keys
	if live := c.live[name]; live != nil {
		t.connected, t.version, t.free = live.since, live.version, live.free
	}
	return t
}

// changed reports whether it is worth a try again.
func (t traits) changed(now traits) bool {
	return !t.connected.Equal(now.connected) || t.version != now.version || t.state != now.state ||
		t.labels != now.labels || now.free >= t.free+moreRoom
}

func (f failure) notBefore() time.Time {
	if f.count == 0 {
		return time.Time{}
	}
	return f.at.Add(min(firstRetry<<min(f.count-1, 10), maxRetry))
}

// add notes that a container did not move to a target with the traits.
func (f failures) add(one store.Intent, refused bool, target traits, at time.Time) {
	last := f[one.Container]
	now := failure{count: last.count + 1, at: at, tried: maps.Clone(last.tried)}
	if now.tried == nil {
		now.tried = map[string]attempt{}
	}
	now.tried[one.To] = attempt{now.at, refused, target}
	if len(now.tried) > maxTried {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(now.tried)), func(a, b string) int {
			return cmp.Or(now.tried[a].at.Compare(now.tried[b].at), cmp.Compare(a, b))
		})
		delete(now.tried, oldest)
	}
	f[one.Container] = now
}

// tried returns the targets that refused a container and have not changed since, and those to which it did
// not move for another reason. now returns the traits of a target.
func (f failures) tried(container string, now func(target string) traits) (refused, failed []string) {
	for target, one := range f[container].tried {
		switch {
		case one.target.changed(now(target)):
		case one.refused:
			refused = append(refused, target)
		default:
			failed = append(failed, target)
		}
	}
	return refused, failed
}

// forget forgets old ones.
func (f failures) forget(now time.Time) {
	maps.DeleteFunc(f, func(_ string, one failure) bool { return now.Sub(one.at) > failuresGoodFor })
}
