package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/migration"
)

// preCopied is the container's memory in worlds of modes that send memory while it runs.
const preCopied = 16 << 20

// preCopyFaults lists the faults of a pre-copy that a cold migration does not have, and the points at which
// a pre-copy's work must be undone. page is in the middle of a round, last-page in that of one in the
// freeze.
func preCopyFaults() []fault {
	var all []fault
	add := func(side, when string, steps []string, kinds ...kind) {
		for _, step := range steps {
			for _, k := range kinds {
				all = append(all, fault{side, step, when, k})
			}
		}
	}
	add("source", "before", []string{"page"}, killSource, killTarget, killBoth, linkBlinks, linkLoses,
		stepFails, userStops, agentEnds)
	add("source", "before", []string{"last-page"}, killSource, killTarget, killBoth, linkBlinks, linkLoses,
		stepFails, userStops)
	add("source", "before", []string{"rounds"}, killSource, killTarget, linkBlinks, stepFails, userStops)
	add("source", "after", []string{"rounds"}, killSource, killTarget, linkBlinks, stepFails, userStops)
	add("source", "before", []string{"freeze", "dump", "send"}, killSource, killTarget, linkBlinks, stepFails,
		userStops)
	add("source", "after", []string{"send"}, killSource, killTarget, killBoth, linkBlinks, stepFails)
	add("target", "before", []string{"receive", "restore"}, killSource, killTarget, linkBlinks, stepFails,
		userStops)
	add("target", "after", []string{"receive", "restore"}, killSource, killTarget, killBoth, linkBlinks,
		stepFails)
	add("source", "before", []string{"destroy"}, killSource, killTarget)
	add("source", "before", []string{"untrack", "thaw"}, killSource, stepFails)
	add("target", "before", []string{"discard"}, killTarget, stepFails)
	return all
}

// TestPreCopyFaults runs the faults of a pre-copy.
func TestPreCopyFaults(t *testing.T) { runFaults(t, migration.PreCopy, preCopyFaults(), 20) }

// hashContent makes Redis compute a hash of all its data.
func (w *world) hashContent(t *testing.T) string {
	t.Helper()
	hash := strings.TrimSpace(w.inNode(t, w.at, w.via.exec(hashing()...)...))
	if len(hash) != 40 {
		t.Fatalf("redis says %q", hash)
	}
	return hash
}

// hashing are arguments with which Redis reads all its data.
func hashing() []string {
	const script = `local all = '' for n = 0, tonumber(ARGV[1]) - 1 do all = redis.sha1hex(all .. redis.call('get', 'fill:' .. n)) end return all`
	const values = preCopied >> 16
	return []string{"redis-cli", "eval", script, "0", fmt.Sprint(values)}
}

// memoryIsRight checks after a pre-copy that the container's memory is unchanged, and that nothing tracks
// its processes any more.
func (w *world) memoryIsRight(t *testing.T) {
	t.Helper()
	if w.content == "" {
		return
	}
	if now := w.hashContent(t); now != w.content {
		t.Errorf("the content of redis on %s hashes to %s, was %s", w.at, now, w.content)
	}
	eventually(t, "the container's processes to be without a trace of the migration",
		func() error { return w.anyTrace(t) })
}

// anyTrace looks for traces of a migration in a process: a userfaultfd, memory that is registered with one,
// a tracer.
func (w *world) anyTrace(t *testing.T) error {
	t.Helper()
	node, err := w.lab.PID(w.at)
	if err != nil {
		return err
	}
	proc := fmt.Sprintf("/proc/%d/root/proc/%d", node, w.find(t, w.at, container).PID)
	descriptors, err := filepath.Glob(proc + "/fd/*")
	if err != nil || len(descriptors) == 0 {
		return fmt.Errorf("%s has no descriptors: %w", proc, err)
	}
	for _, d := range descriptors {
		if target, _ := os.Readlink(d); strings.Contains(target, "userfault") {
			return fmt.Errorf("%s is %s", d, target)
		}
	}
	smaps, err := os.ReadFile(proc + "/smaps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(smaps)) {
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok &&
			(strings.Contains(flags, " uw") || strings.Contains(flags, " um")) {
			return fmt.Errorf("memory of %s is registered with a userfaultfd: %s", proc, line)
		}
	}
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return err
	}
	if !strings.Contains(string(status), "TracerPid:\t0\n") {
		return fmt.Errorf("%s is traced", proc)
	}
	return nil
}

// kills is how often TestKilledWhileAttaching kills an agent.
const kills = 12

// TestKilledWhileAttaching kills the source's agent at any moment of its first look into the container's
// processes. They must continue undisturbed.
func TestKilledWhileAttaching(t *testing.T) {
	w := newWorldOf(t, migration.PreCopy, patient)
	w.learnOrder(t)
	beforeRounds := agent.Fault{Side: "source", Step: "rounds", When: "before"}
	for n := range kills {
		w.meet(t)
		from := w.at
		w.set(t, from, beforeRounds, agent.FaultPause)
		id := w.begin(t, from, other(from))
		w.reach(t, from, beforeRounds)
		w.goOn(t, from, beforeRounds)
		time.Sleep(time.Duration(rand.Int64N(int64(8 * time.Millisecond)))) // any moment
		w.killAgent(t, from)
		w.reviveAgents(t)
		w.settle(t, id)
		w.inOrder(t)
		w.memoryIsRight(t)
		w.clientGoesOn(t)
		if w.at != from || t.Failed() {
			t.Fatalf("kill %d: it is on %s, was on %s", n, w.at, from)
		}
	}
	w.clientIsHappy(t)
}
