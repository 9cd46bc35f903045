package executor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Queue is the intents that have not ended.
type Queue struct {
	limits Limits
	jobs   map[string]*Job
}

// NewQueue returns an empty queue.
func NewQueue(limits Limits) *Queue { return &Queue{limits: limits, jobs: map[string]*Job{}} }

// Add takes a job, which may have been sent by an earlier leader. A job that is known stays as it is.
func (q *Queue) Add(job Job) {
	if q.jobs[job.ID] == nil {
		q.jobs[job.ID] = &job
	}
}

// Remove forgets a job that has ended.
func (q *Queue) Remove(id string) { delete(q.jobs, id) }

// Sent notes that the command of a job is about to be sent.
func (q *Queue) Sent(id string) {
	if job := q.jobs[id]; job != nil {
		job.Sent = true
	}
}

// Cancel cancels a job. sent: its source has to be asked, as it may have begun the migration; otherwise the
// job is gone.
func (q *Queue) Cancel(id string) (sent bool) {
	job := q.jobs[id]
	if job == nil || !job.Sent {
		q.Remove(id)
		return false
	}
	job.Cancelled = true
	return true
}

// Waiting is a job that may not begin yet, and why.
type Waiting struct {
	Job Job
	For string
}

// Next returns the jobs that may begin now, and those that wait. connected reports whether a node can be
// asked. The caller makes durable that they are sent, calls Sent, and sends their commands.
func (q *Queue) Next(connected func(node string) bool) (begin []Job, waiting []Waiting) {
	use := newUsage()
	var queued []Job
	for _, job := range q.jobs {
		if job.Sent {
			use.add(*job)
		} else {
			queued = append(queued, *job)
		}
	}
	slices.SortFunc(queued, order)
	for _, job := range queued {
		if why := q.mustWait(job, use, connected); why != "" {
			waiting = append(waiting, Waiting{job, why})
			continue
		}
		use.add(job)
		begin = append(begin, job)
	}
	return begin, waiting
}

func order(a, b Job) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Created, b.Created),
		cmp.Compare(a.ID, b.ID))
}

// mustWait says what a job waits for; empty: nothing.
func (q *Queue) mustWait(job Job, use usage, connected func(string) bool) string {
	switch {
	case !connected(job.From):
		return job.From + " to connect"
	case !connected(job.To):
		return job.To + " to connect"
	case len(use.out[job.From]) >= q.limits.OutPerNode:
		return fmt.Sprintf("%s, which leave %s: the limit is %d at once", names(use.out[job.From]), job.From,
			q.limits.OutPerNode)
	case len(use.in[job.To]) >= q.limits.InPerNode:
		return fmt.Sprintf("%s, which go to %s: the limit is %d at once", names(use.in[job.To]), job.To,
			q.limits.InPerNode)
	case q.limits.LinkBitsPerSecond > 0 && len(use.link[link{job.From, job.To}]) > 0:
		return fmt.Sprintf("%s, which uses the link from %s to %s",
			names(use.link[link{job.From, job.To}]), job.From, job.To)
	}
	return ""
}

func names(jobs []Job) string {
	var all []string
	for _, job := range jobs {
		all = append(all, job.Name)
	}
	slices.Sort(all)
	return strings.Join(all, " and ")
}

// Command is what the agent of a job's source is asked.
func (q *Queue) Command(job Job, epoch uint64) Command {
	return Command{
		ID: job.ID, Epoch: epoch, Generation: job.Generation, Container: job.Container, From: job.From,
		To: job.To, Mode: job.Mode, BitsPerSecond: q.limits.LinkBitsPerSecond, Cancel: job.Cancelled,
	}
}

// Repeat returns the jobs whose commands a node must get again when it has connected.
func (q *Queue) Repeat(node string) (again []Job) {
	for _, job := range q.jobs {
		if job.Sent && job.From == node {
			again = append(again, *job)
		}
	}
	slices.SortFunc(again, order)
	return again
}

// Find returns a job.
func (q *Queue) Find(id string) (Job, bool) {
	if job := q.jobs[id]; job != nil {
		return *job, true
	}
	return Job{}, false
}

// Busy returns the containers that have a job.
func (q *Queue) Busy() map[string]bool {
	busy := map[string]bool{}
	for _, job := range q.jobs {
		busy[job.Container] = true
	}
	return busy
}

// All returns all jobs, those that go first first.
func (q *Queue) All() []Job {
	var all []Job
	for _, job := range q.jobs {
		all = append(all, *job)
	}
	slices.SortFunc(all, order)
	return all
}

type link struct{ from, to string }

// usage is what is under way.
type usage struct {
	out, in map[string][]Job
	link    map[link][]Job
}

func newUsage() usage {
	return usage{map[string][]Job{}, map[string][]Job{}, map[link][]Job{}}
}

func (u usage) add(job Job) {
	u.out[job.From] = append(u.out[job.From], job)
	u.in[job.To] = append(u.in[job.To], job)
	between := link{job.From, job.To}
	u.link[between] = append(u.link[between], job)
}
