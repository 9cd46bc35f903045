package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
)

// pushLink is a link on which the remote pages take long enough for faults meanwhile.
var pushLink = lab.Link{BandwidthBitsPerSecond: 50_000_000, RTT: 2 * time.Millisecond}

// slowDown makes the link slow in worlds with post-copy.
func (w *world) slowDown(t *testing.T) {
	t.Helper()
	if w.mode != migration.PostCopy && w.mode != migration.Hybrid {
		return
	}
	if err := w.lab.SetLink("a", "b", pushLink); err != nil {
		t.Fatal(err)
	}
}

// postCopyFaults lists the faults where a post-copy differs from a pre-copy. Pages are sent between the end
// of send and the end of the push (step "drain").
func postCopyFaults() []fault {
	var all []fault
	add := func(side, when string, steps []string, kinds ...kind) {
		for _, step := range steps {
			for _, k := range kinds {
				all = append(all, fault{side, step, when, k})
			}
		}
	}
	add("source", "before", []string{"drain"}, killSource, killTarget, killBoth, linkBlinks, linkLoses,
		stepFails, userStops)
	add("source", "after", []string{"drain"}, killSource, killTarget, killBoth, linkBlinks, stepFails)
	add("source", "before", []string{"destroy"}, killSource, killTarget, killBoth, linkBlinks, linkLoses,
		stepFails, userStops)
	add("source", "before", []string{"forward", "cleanup"}, killSource, killTarget, killBoth, linkBlinks,
		stepFails, userStops)
	add("source", "after", []string{"rounds"}, killSource, killTarget, linkBlinks, stepFails, userStops)
	add("source", "before", []string{"freeze", "dump", "send"}, killSource, killTarget, killBoth, linkBlinks,
		stepFails, userStops)
	add("source", "after", []string{"send"}, killSource, killTarget, killBoth, linkBlinks, stepFails,
		userStops)
	add("target", "before", []string{"receive", "restore"}, killSource, killTarget, killBoth, linkBlinks,
		stepFails, userStops)
	add("target", "after", []string{"receive", "restore"}, killSource, killTarget, killBoth, linkBlinks,
		stepFails, userStops)
	add("target", "before", []string{"settle"}, killSource, killTarget, linkBlinks, stepFails)
	add("source", "before", []string{"untrack", "thaw"}, killSource, stepFails)
	add("target", "before", []string{"discard"}, killTarget, stepFails)
	return all
}

// hybridFaults lists the faults where a hybrid differs from both.
func hybridFaults() []fault {
	var all []fault
	for _, step := range []string{"page", "last-page", "drain", "destroy"} {
		for _, k := range []kind{killSource, killTarget, killBoth, linkBlinks, linkLoses} {
			all = append(all, fault{"source", step, "before", k})
		}
	}
	return all
}

// TestPostCopyFaults runs the faults of a post-copy.
func TestPostCopyFaults(t *testing.T) { runFaults(t, migration.PostCopy, postCopyFaults(), 52) }

// TestHybridFaults runs the faults of a hybrid.
func TestHybridFaults(t *testing.T) { runFaults(t, migration.Hybrid, hybridFaults(), 12) }

// pushesVariable is how often TestPushBreaks breaks a post-copy push in each way; make soak-drain sets it.
const pushesVariable = "GODWIT_FAULTS_DRAINS"

// TestPushBreaks cuts the link for some seconds, and kills both agents, at any moment of the push. No data
// may be lost, and pages that had arrived must not be sent again.
func TestPushBreaks(t *testing.T) {
	t.Parallel()
	each := 1
	if text := os.Getenv(pushesVariable); text != "" {
		var err error
		if each, err = strconv.Atoi(text); err != nil || each < 1 {
			t.Fatalf("%s is %q, want a number of post-copy pushes", pushesVariable, text)
		}
	}
	w := newWorldOf(t, migration.PostCopy, soon)
	w.learnOrder(t)
	w.slowDown(t)
	for n := range each {
		t.Run(fmt.Sprintf("the link is cut %d", n), func(t *testing.T) { w.breakOne(t, w.cutLink) })
		t.Run(fmt.Sprintf("the agents are killed %d", n), func(t *testing.T) { w.breakOne(t, w.killAgents) })
	}
	w.clientIsHappy(t)
}

// inFlight is the maximum number of pages under way when a connection breaks: in its buffers and on the
// link.
const inFlight = 1024

// breakOne breaks a post-copy push, and another one if all pages had come before that.
func (w *world) breakOne(t *testing.T, breaks func(*testing.T)) {
	for range 5 {
		if w.pushBreaks(t, breaks) > 0 || t.Failed() {
			return
		}
	}
	t.Log("each time all pages had come before something broke")
}

// pushBreaks migrates, calls breaks when some share of the pages has come, and checks what must hold then.
// It returns how many pages were missing.
func (w *world) pushBreaks(t *testing.T, breaks func(*testing.T)) (left int64) {
	w.meet(t)
	from, to := w.at, other(w.at)
	id, left := w.pushTo(t, from, to, 1-0.8*rand.Float64())
	breaks(t)
	w.settle(t, id)
	w.inOrder(t)
	r, _ := w.report(t, from, id)
	if w.at != to || r.Result != migration.Moved || r.Push == nil {
		t.Fatalf("it is on %s, and the source says %+v", w.at, r)
	}
	d := r.Push
	t.Logf("broke with %d pages left; then %+v", left, *d)
	// An agent counts what it has sent itself: a restarted agent sends the pages that the target lacked
	// then.
	if sent := d.UrgentPages + d.PushedPages; d.LeftPages > 0 || d.LostPages > 0 ||
		sent > d.RemotePages+inFlight {
		t.Errorf("%d pages were sent, of %d; %+v", sent, d.RemotePages, *d)
	}
	w.clientGoesOn(t)
	w.memoryIsRight(t)
	return left
}

// pushTo migrates and waits until at most a share of the remote pages is missing. It returns their number.
// Impatient agents take a busy machine for a broken link, and roll back; then pushTo tries again.
func (w *world) pushTo(t *testing.T, from, to string, share float64) (id string, left int64) {
	t.Helper()
	id = w.begin(t, from, to)
	eventually(t, "pages to follow", func() error {
		if r, known := w.report(t, from, id); known && r.Result == migration.RolledBack {
			w.settle(t, id)
			id = w.begin(t, from, to)
		}
		r, _ := w.report(t, to, id)
		if r.Push == nil && r.Result != migration.Moved {
			return errors.New("nothing is known of them")
		}
		if r.Push != nil {
			left = r.Push.LeftPages
		}
		if r.Push != nil && float64(left) > share*float64(r.Push.RemotePages) {
			return fmt.Errorf("%d are missing", left)
		}
		return nil
	})
	return id, left
}

func (w *world) cutLink(t *testing.T) {
	t.Helper()
	w.linkDown(t)
	// shorter and longer than the agents' timeout
	time.Sleep(time.Second + time.Duration(rand.Int64N(int64(5*time.Second))))
	w.linkUp(t)
}

func (w *world) killAgents(t *testing.T) {
	t.Helper()
	nodes := []string{"a", "b"}
	rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for _, node := range nodes {
		w.killAgent(t, node)
	}
	w.reviveAgents(t)
}
