package executor

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// source is the agent of a node, as package uplink has it: it remembers commands, begins each at most once,
// and none that was cancelled before.
type source struct {
	states    map[string]string // of commands: running, moved, failed
	began     map[string]int
	cancel    map[string]bool
	connected bool
	down      []Command // on their way to the agent
	up        []string  // ids of commands whose state is on its way to the controller
}

// takes does what a command asks for.
func (s *source) takes(c Command) {
	state, known := s.states[c.ID]
	switch {
	case c.Cancel && !known:
		s.states[c.ID] = "failed"
	case c.Cancel && state == "running":
		s.cancel[c.ID] = true
	case !c.Cancel && !known:
		s.states[c.ID] = "running"
		s.began[c.ID]++
	}
	s.up = append(s.up, c.ID)
}

// life is a controller with its durable intents, and the agents.
type life struct {
	t      *testing.T
	random *rand.Rand
	limits Limits
	queue  *Queue
	epoch  uint64

	durable map[string]Job // that have not ended
	ended   map[string]string
	// dropped jobs were cancelled before they were sent.
	dropped map[string]bool
	sources map[string]*source
}

func (l *life) connected(node string) bool { return l.sources[node].connected }

func (l *life) send(job Job) {
	if s := l.sources[job.From]; s.connected {
		s.down = append(s.down, l.queue.Command(job, l.epoch))
	}
}

// begin sends what may begin; that is durable before.
func (l *life) begin() {
	begin, _ := l.queue.Next(l.connected)
	for _, job := range begin {
		l.queue.Sent(job.ID)
		job.Sent = true
		l.durable[job.ID] = job
		l.send(job)
	}
}

// cancel is what a user does with a job that has not ended.
func (l *life) cancel(id string) {
	job := l.durable[id]
	if !job.Sent {
		delete(l.durable, id)
		l.ended[id], l.dropped[id] = "cancelled", true
	} else {
		job.Cancelled = true
		l.durable[id] = job
	}
	if l.queue.Cancel(id) {
		found, _ := l.queue.Find(id)
		l.send(found)
	} else if !l.dropped[id] {
		l.t.Fatalf("the source of %s is not asked", id)
	}
}

// hear takes over what an agent says of a command.
func (l *life) hear(s *source, id string) {
	job, open := l.durable[id]
	if state := s.states[id]; open && state != "running" {
		if l.ended[id] = state; job.Cancelled && state == "failed" {
			l.ended[id] = "cancelled"
		}
		delete(l.durable, id)
		l.queue.Remove(id)
	}
}

// step is one of the things that can happen.
func (l *life) step() {
	node := slices.Sorted(maps.Keys(l.sources))[l.random.IntN(len(l.sources))]
	s := l.sources[node]
	switch l.random.IntN(8) {
	case 0:
		l.begin()
	case 1:
		if open := slices.Sorted(maps.Keys(l.durable)); len(open) > 0 && l.random.IntN(3) == 0 {
			l.cancel(open[l.random.IntN(len(open))])
		}
	case 2: // the connection is lost, with what is on its way
		if l.random.IntN(4) == 0 {
			s.connected, s.down, s.up = false, nil, nil
		}
	case 3:
		l.connect(s, node)
	case 4: // another controller leads
		if l.random.IntN(10) == 0 {
			l.epoch++
			l.queue = NewQueue(l.limits)
			for _, job := range l.durable {
				l.queue.Add(job)
			}
			for _, other := range l.sources {
				other.connected, other.down, other.up = false, nil, nil
			}
		}
	case 5:
		if len(s.down) > 0 {
			s.takes(s.down[0])
			s.down = s.down[1:]
		}
	case 6:
		if len(s.up) > 0 {
			l.hear(s, s.up[0])
			s.up = s.up[1:]
		}
	case 7:
		l.progress(s)
	}
}

func (l *life) connect(s *source, node string) {
	if !s.connected {
		s.connected = true
		for _, job := range l.queue.Repeat(node) {
			l.send(job)
		}
	}
}

// progress ends a migration of a source: a cancelled one may have been too late.
func (l *life) progress(s *source) {
	for _, id := range slices.Sorted(maps.Keys(s.states)) {
		if s.states[id] != "running" || l.random.IntN(3) > 0 {
			continue
		}
		s.states[id] = "moved"
		if l.random.IntN(4) == 0 || s.cancel[id] && l.random.IntN(4) > 0 {
			s.states[id] = "failed"
		}
		if s.connected {
			s.up = append(s.up, id)
		}
	}
}

func (l *life) check() {
	l.t.Helper()
	out, in := map[string]int{}, map[string]int{}
	for node, s := range l.sources {
		for id, count := range s.began {
			if count > 1 || l.dropped[id] {
				l.t.Fatalf("%s began %d times at %s; dropped: %t", id, count, node, l.dropped[id])
			}
		}
		for id, state := range s.states {
			if job := l.durable[id]; state == "running" {
				out[job.From]++
				in[job.To]++
			}
			if end := l.ended[id]; end != "" && end != state && (end != "cancelled" || state != "failed") {
				l.t.Fatalf("%s ended as %s, and is %s at %s", id, end, state, node)
			}
		}
	}
	for node := range l.sources {
		if out[node] > l.limits.OutPerNode || in[node] > l.limits.InPerNode {
			l.t.Fatalf("%d leave %s and %d come", out[node], node, in[node])
		}
	}
}

// TestLife lets users cancel moves while connections and controllers are lost: nothing begins twice or after
// it was cancelled, the limits hold, what the controller says of the end is what the source knows, and all
// moves end.
func TestLife(t *testing.T) {
	ends := map[string]int{}
	for seed := range uint64(200) {
		l := &life{t: t, random: rand.New(rand.NewPCG(seed, 7)), limits: Limits{OutPerNode: 2, InPerNode: 2},
			durable: map[string]Job{}, ended: map[string]string{}, dropped: map[string]bool{},
			sources: map[string]*source{}}
		l.queue = NewQueue(l.limits)
		const nodes, jobs = 4, 20
		for i := range nodes {
			l.sources[fmt.Sprint("n", i)] = &source{states: map[string]string{}, began: map[string]int{},
				cancel: map[string]bool{}}
		}
		for i := range jobs {
			from := l.random.IntN(nodes)
			one := job(fmt.Sprintf("%02d", i), fmt.Sprint("n", from), fmt.Sprint("n", (from+1)%nodes), 0)
			l.durable[one.ID] = one
			l.queue.Add(one)
		}
		for turn := 0; len(l.durable) > 0; turn++ {
			if turn > 20_000 {
				t.Fatalf("seed %d: these do not end: %v", seed, l.durable)
			}
			l.step()
			l.check()
		}
		if len(l.ended) != jobs || len(l.queue.All()) > 0 {
			t.Errorf("seed %d: %d of %d ended, %v are queued", seed, len(l.ended), jobs, l.queue.All())
		}
		for id, end := range l.ended {
			ends[end]++
			if end == "cancelled" && l.dropped[id] {
				ends["dropped"]++
			}
		}
	}
	for _, one := range []string{"moved", "failed", "cancelled", "dropped"} {
		if ends[one] == 0 {
			t.Errorf("no move ended so: %s; %v", one, ends)
		}
	}
}
