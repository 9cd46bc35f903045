package executor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func all(string) bool { return true }

func job(id, from, to string, priority int) Job {
	return Job{ID: id, Container: "c-" + id, Name: "n-" + id, From: from, To: to, Priority: priority}
}

func ids(jobs []Job) string {
	var all []string
	for _, one := range jobs {
		all = append(all, one.ID)
	}
	return strings.Join(all, " ")
}

// carry marks jobs as sent.
func carry(q *Queue, jobs []Job) {
	for _, one := range jobs {
		q.Sent(one.ID)
	}
}

func TestNext(t *testing.T) {
	limited := DefaultLimits()
	limited.LinkBitsPerSecond = 1e8
	except := func(node string) func(string) bool { return func(n string) bool { return n != node } }
	for what, test := range map[string]struct {
		limits    Limits
		sent      []Job
		jobs      []Job
		connected func(string) bool
		begin     string
		waits     map[string]string
	}{
		"nothing": {DefaultLimits(), nil, nil, all, "", nil},
		"two out of a node": {DefaultLimits(), nil,
			[]Job{job("1", "a", "b", 0), job("2", "a", "c", 0), job("3", "a", "d", 0), job("4", "e", "d", 0)},
			all, "1 2 4", map[string]string{"3": "n-1 and n-2, which leave a: the limit is 2 at once"}},
		"two into a node": {DefaultLimits(), []Job{job("0", "z", "b", 0)},
			[]Job{job("1", "a", "b", 0), job("2", "c", "b", 0)}, all, "1",
			map[string]string{"2": "n-0 and n-1, which go to b: the limit is 2 at once"}},
		"the urgent first": {DefaultLimits(), nil,
			[]Job{job("1", "a", "b", 10), job("2", "a", "b", 100), job("3", "a", "b", 50)}, all, "2 3",
			map[string]string{"1": "n-2 and n-3, which leave a: the limit is 2 at once"}},
		"the limit of a link": {limited, nil,
			[]Job{job("1", "a", "b", 0), job("2", "a", "b", 0), job("3", "a", "c", 0), job("4", "b", "a", 0)},
			all, "1 3 4", map[string]string{"2": "n-1, which uses the link from a to b"}},
		"a source that is away": {DefaultLimits(), nil, []Job{job("1", "a", "b", 0), job("2", "b", "c", 0)},
			except("a"), "2", map[string]string{"1": "a to connect"}},
		"a target that is away": {DefaultLimits(), nil, []Job{job("1", "a", "b", 0)}, except("b"), "",
			map[string]string{"1": "b to connect"}},
	} {
		t.Run(what, func(t *testing.T) {
			q := NewQueue(test.limits)
			for _, one := range test.sent {
				one.Sent = true
				q.Add(one)
			}
			for _, one := range test.jobs {
				q.Add(one)
			}
			begin, waiting := q.Next(test.connected)
			if ids(begin) != test.begin {
				t.Errorf("%q begin, want %q", ids(begin), test.begin)
			}
			if len(waiting) != len(test.waits) {
				t.Errorf("%v wait", waiting)
			}
			for _, one := range waiting {
				if test.waits[one.Job.ID] != one.For {
					t.Errorf("%s waits for %q", one.Job.ID, one.For)
				}
			}
		})
	}
}

// TestRepeat: only what may have begun is sent again, to its source, with the present epoch.
func TestRepeat(t *testing.T) {
	q := NewQueue(DefaultLimits())
	one, two, three := job("1", "a", "b", 0), job("2", "a", "c", 0), job("3", "b", "c", 0)
	one.Sent, three.Sent, one.Generation = true, true, 7
	for _, add := range []Job{one, two, three} {
		q.Add(add)
	}
	again := q.Repeat("a")
	if ids(again) != "1" {
		t.Fatalf("%v are repeated", again)
	}
	command := q.Command(again[0], 5)
	if command.ID != "1" || command.Epoch != 5 || command.Generation != 7 || command.To != "b" {
		t.Errorf("command %+v", command)
	}
	q.Add(job("1", "x", "y", 0)) // as after a mistake: what is known stays
	if found, _ := q.Find("1"); found.From != "a" || !found.Sent {
		t.Errorf("the job is %+v", found)
	}
	q.Remove("1")
	if _, found := q.Find("1"); found || len(q.Repeat("a")) > 0 || q.Busy()["c-1"] || !q.Busy()["c-2"] {
		t.Error("a removed job is there")
	}
}

// TestCancel: a job that waits is gone; one that was sent stays, and its source is asked to cancel it.
func TestCancel(t *testing.T) {
	q := NewQueue(Limits{OutPerNode: 1, InPerNode: 1})
	one, two := job("1", "a", "b", 0), job("2", "a", "b", 0)
	one.Sent = true
	q.Add(one)
	q.Add(two)
	for _, id := range []string{"2", "2", "no such job"} {
		if q.Cancel(id) {
			t.Errorf("the source of %s is asked", id)
		}
	}
	if ids(q.All()) != "1" {
		t.Errorf("%v are left", q.All())
	}
	for range 2 {
		if !q.Cancel("1") {
			t.Error("the source of a job that was sent is not asked")
		}
	}
	q.Add(two)
	if begin, _ := q.Next(all); len(begin) > 0 {
		t.Errorf("%v begin before the cancelled job has ended", begin)
	}
	again := q.Repeat("a")
	if ids(again) != "1" || !q.Command(again[0], 5).Cancel {
		t.Errorf("%+v is repeated", again)
	}
	if found, _ := q.Find("2"); q.Command(found, 5).Cancel {
		t.Error("another job is cancelled")
	}
}

// TestLimitsHold runs random jobs to their ends: the limits hold at each instant, and all jobs end.
func TestLimitsHold(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		limits := Limits{OutPerNode: 1 + random.IntN(3), InPerNode: 1 + random.IntN(3)}
		if seed%2 == 0 {
			limits.LinkBitsPerSecond = 1e8
		}
		q := NewQueue(limits)
		for i := range 60 {
			from := random.IntN(6)
			q.Add(job(fmt.Sprintf("%02d", i), fmt.Sprint("n", from), fmt.Sprint("n",
				(from+1+random.IntN(5))%6),
				random.IntN(3)*10))
		}
		for turn := 0; len(q.All()) > 0; turn++ {
			begin, _ := q.Next(all)
			carry(q, begin)
			use := newUsage()
			running := slices.DeleteFunc(q.All(), func(j Job) bool { return !j.Sent })
			for _, one := range running {
				use.add(one)
			}
			for node := range use.out {
				if len(use.out[node]) > limits.OutPerNode {
					t.Fatalf("seed %d: %d leave %s", seed, len(use.out[node]), node)
				}
			}
			for node := range use.in {
				if len(use.in[node]) > limits.InPerNode {
					t.Fatalf("seed %d: %d go to %s", seed, len(use.in[node]), node)
				}
			}
			for between := range use.link {
				if limits.LinkBitsPerSecond > 0 && len(use.link[between]) > 1 {
					t.Fatalf("seed %d: %d use one link", seed, len(use.link[between]))
				}
			}
			if len(running) == 0 || turn > 100 {
				t.Fatalf("seed %d: the queue stands still: %v", seed, q.All())
			}
			q.Remove(running[random.IntN(len(running))].ID)
		}
	}
}
