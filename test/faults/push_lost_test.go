package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestPushLost permanently loses something that a post-copy push needs. Only an operator may then decide
// about the container.
func TestPushLost(t *testing.T) {
	t.Parallel()
	t.Run("the pager", func(t *testing.T) { newWorldOf(t, migration.PostCopy, soon).pagerLost(t) })
	t.Run("the source, accesses fail",
		func(t *testing.T) { newWorldOf(t, migration.PostCopy, soon).sourceLost(t, "fail") })
	t.Run("the source, killed",
		func(t *testing.T) { newWorldOf(t, migration.PostCopy, soon).sourceLost(t, "kill") })
	t.Run("the source's journal",
		func(t *testing.T) { newWorldOf(t, migration.PostCopy, soon).pushJournalLost(t) })
	t.Run("the target", func(t *testing.T) { newWorldOf(t, migration.PostCopy, soon).targetLostPushing(t) })
}

// standstill brings a migration from a to b to a point where pages are missing and none come, because the
// link is down.
func (w *world) standstill(t *testing.T) (id string) {
	t.Helper()
	for range nodes { // there and back: lasting objects of the nodes exist then
		w.meet(t)
		w.settle(t, w.begin(t, w.at, other(w.at)))
	}
	w.meet(t)
	w.quiet(t)
	w.slowDown(t)
	id, left := w.pushTo(t, "a", "b", 0.9)
	w.linkDown(t)
	if left == 0 {
		t.Fatal("all pages have come already")
	}
	return id
}

// processesOf finds processes of a node by their arguments, with PIDs for this process.
func (w *world) processesOf(t *testing.T, node, words string) (pids []int) {
	t.Helper()
	init, err := w.lab.PID(node)
	if err != nil {
		t.Fatal(err)
	}
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", init))
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, directory := range all {
		cmdline, err := os.ReadFile(directory + "/cmdline")
		if err != nil || !strings.Contains(strings.ReplaceAll(string(cmdline), "\x00", " "), words) {
			continue
		}
		if theirs, err := os.Readlink(directory + "/ns/pid"); err == nil && theirs == space {
			pid, _ := strconv.Atoi(filepath.Base(directory))
			pids = append(pids, pid)
		}
	}
	return pids
}

// pagerLost kills the container's pager. The container ends, because its memory would be wrong. The source
// has its complete memory, and keeps it until an operator decides.
func (w *world) pagerLost(t *testing.T) {
	id := w.standstill(t)
	pagers := w.processesOf(t, "b", "memory-pager")
	if len(pagers) == 0 {
		t.Fatal("nothing fills the memory")
	}
	for _, pid := range pagers[:1] {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	w.expectState(t, "b", engine.Exited)
	w.linkUp(t)
	w.expectState(t, "a", engine.Frozen)
	eventually(t, "the source to tell of it", func() error {
		out, err := w.godwit(t.Context(), "a", "migration", "show", id)
		if err == nil && (!strings.Contains(out, "killed") || !strings.Contains(out, "--runs-at source")) {
			err = fmt.Errorf("it says %s", out)
		}
		return err
	})
	w.must(t, "a", "migration", "resolve", id, "--runs-at", "source")
	w.runsAgain(t, id)
}

// pushJournalLost: the source's agent loses its journal while its copy alone has the missing pages. The
// target reports at once that the container runs, and must not hear that the push is complete.
func (w *world) pushJournalLost(t *testing.T) {
	id := w.standstill(t)
	w.killAgent(t, "a")
	w.forget(t, "a", id)
	w.linkUp(t)
	w.reviveAgents(t)
	w.settle(t, id)
	r, _ := w.report(t, "a", id)
	if w.at != "b" || !strings.Contains(strings.Join(r.Notes, " "), "made anew") {
		t.Errorf("it is on %s, and the source says %+v", w.at, r)
	}
	w.clientGoesOn(t)
	w.memoryIsRight(t)
}

// runsAgain checks that the container runs at a, in its state from the freeze. Its client's connection is
// newer.
func (w *world) runsAgain(t *testing.T, id string) {
	t.Helper()
	w.stop()
	w.expectState(t, "a", engine.Running)
	w.at = "a"
	eventually(t, "the migration to end", func() error {
		if r, _ := w.report(t, "a", id); r.Result == migration.ResultRuns ||
			r.Result == migration.ResultDoubt {
			return fmt.Errorf("it is %s", r.Result)
		}
		return nil
	})
	w.memoryIsRight(t)
	eventually(t, "a to be in order", func() error { return w.order["aa"].compare(w.look(t, "a")) })
}

// sourceLost loses the source while it has pages. The container continues as far as its pages allow, until
// an operator decides.
func (w *world) sourceLost(t *testing.T, missing string) {
	id := w.standstill(t)
	lose := w.lab.Kill
	if missing == "kill" { // not really lost for good, although everybody thinks so
		lose = func(node string) error { return w.lab.KillAgent(t.Context(), node) }
	}
	if err := lose("a"); err != nil {
		t.Fatal(err)
	}
	w.expectState(t, "b", engine.Running)
	if out, err := w.godwit(t.Context(), "b", "migration", "resolve", id, "--runs-at",
		"target"); err == nil ||
		!strings.Contains(err.Error(), "--missing-pages") ||
		!strings.Contains(err.Error(), "of redis's memory are still at a") {
		t.Errorf("resolved without a word on what is missing: %s %v", out, err)
	}
	w.expectState(t, "b", engine.Running)
	eventually(t, "the operator to be heard", func() error { // not before the target knows that nothing comes
		_, err := w.godwit(t.Context(), "b", "migration", "resolve", id, "--runs-at", "target",
			"--missing-pages", missing, "--force")
		return err
	})
	w.stop()
	if missing == "fail" {
		w.readsMissing(t)
	}
	w.expectState(t, "b", engine.Exited)
	if r, _ := w.report(t, "b", id); missing == "fail" && (r.Push == nil || r.Push.LostPages == 0) {
		t.Errorf("the report does not tell what is lost: %+v", r)
	}
	if missing == "fail" {
		w.failedByLoss(t)
	}
	w.must(t, "b", "rm", container)
	w.nothingOf(t, "b")
	if missing == "kill" {
		w.comesBack(t, id)
	}
}

// toldBySignal is Redis's report of a SIGBUS.
const toldBySignal = "crashed by signal: 7"

// readsMissing reads all of the container's memory, and so some missing pages, and ends the container if it
// does not end by itself: Redis allocates memory for its report of the signal, and waits for ever if the
// same thread held the allocator's lock when the signal came.
func (w *world) readsMissing(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := make(chan string, 1)
	go func() {
		out, _ := w.lab.Exec(ctx, "b", w.via.exec(hashing()...)...) // ends with the container
		read <- strings.TrimSpace(out)
	}()
	eventually(t, "the container to read what is missing", func() error {
		if now := w.find(t, "b", container); now.State != engine.Exited &&
			!strings.Contains(w.must(t, "b", "logs", container), toldBySignal) {
			return fmt.Errorf("it is %s", now.State)
		}
		return nil
	})
	if w.find(t, "b", container).State != engine.Exited {
		_, _ = w.godwit(t.Context(), "b", "stop", "--time", "5s", container) // it may just have ended
	}
	cancel()
	if out := <-read; len(out) == 40 {
		t.Errorf("what is missing was read: %s", out)
	}
}

// failedByLoss checks that the container has ended because it touched missing pages, and not because it
// read something wrong.
//
// A SIGBUS signals such a touch. If the part of the stack for that signal is missing, or the memory to
// which rseq(2) writes on the way to the handler, the kernel ends the process by SIGSEGV at once, whatever
// handlers it has (signal_setup_done in kernel/signal.c). Redis would report a SIGSEGV with another cause,
// such as a wrong pointer.
func (w *world) failedByLoss(t *testing.T) {
	t.Helper()
	log := w.must(t, "b", "logs", container)
	switch now := w.find(t, "b", container); {
	case strings.Contains(log, "crashed by signal: 11"):
		t.Errorf("the container read something wrong:\n%s", log)
	case !strings.Contains(log, toldBySignal) && now.ExitCode != 128+int(unix.SIGBUS) &&
		now.ExitCode != 128+int(unix.SIGSEGV):
		t.Errorf("the container was not told by SIGBUS, but exited with %d:\n%s", now.ExitCode, log)
	default:
		t.Logf("exited with %d; reported %v", now.ExitCode, strings.Contains(log, toldBySignal))
	}
}

// comesBack brings a source back after an operator has ended its migration at the target: it ends there,
// too.
func (w *world) comesBack(t *testing.T, id string) {
	t.Helper()
	w.linkUp(t)
	w.reviveAgents(t)
	eventually(t, "the migration to end at a", func() error {
		if r, _ := w.report(t, "a", id); r.Result != migration.Moved {
			return fmt.Errorf("it is %q", r.Result)
		}
		return nil
	})
	w.nothingOf(t, "a")
}

// targetLostPushing loses the target. The source can continue from its own copy, if an operator says so.
func (w *world) targetLostPushing(t *testing.T) {
	id := w.standstill(t)
	if err := w.lab.Kill("b"); err != nil {
		t.Fatal(err)
	}
	w.expectState(t, "a", engine.Frozen)
	if r, _ := w.report(t, "a", id); r.Result != migration.ResultRuns {
		t.Errorf("the source says %s", r.Result)
	}
	// not before the source knows that the target is gone
	eventually(t, "the operator to be heard", func() error {
		_, err := w.godwit(t.Context(), "a", "migration", "resolve", id, "--runs-at", "source", "--force")
		return err
	})
	w.runsAgain(t, id)
	if r, _ := w.report(t, "a", id); !strings.Contains(strings.Join(r.Notes, " "), "operator decided") {
		t.Errorf("the report does not tell who decided: %+v", r)
	}
	if out, err := w.godwit(t.Context(), "a", "rm", "--force", container); err != nil {
		t.Error(errors.Join(err, errors.New(out)))
	}
}
