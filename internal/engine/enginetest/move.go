package enginetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

func itoa(n int) string { return strconv.Itoa(n) }

// counter is a script that counts for ever.
const counter = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.01; done"

// checkCount checks that a counter's output is complete, with no line twice.
func checkCount(t *testing.T, out string) {
	t.Helper()
	out = strings.ReplaceAll(out, "\r", "")
	lines := strings.Split(out[:strings.LastIndexByte(out, '\n')], "\n")
	for i, line := range lines {
		if line != itoa(i) {
			t.Fatalf("line %d of the output is %q", i, line)
		}
	}
}

func testMove(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, "x=$$; trap 'echo still here' USR1; echo ready; while :; do sleep 0.05; done")
	said(t, a, d.ID, "ready")
	before := state(t, a, d.ID).Definition
	move(t, a, b, d.ID)
	if _, err := a.Inspect(t.Context(), d.ID); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("at the source it is still there: %v", err)
	}
	ctr := state(t, b, d.ID)
	if ctr.State != engine.Running || ctr.PID == 0 || ctr.Definition.Name != before.Name ||
		ctr.Started.IsZero() {
		t.Errorf("at the target: %+v", ctr)
	}
	if got, code := execute(t, b, d.ID, "kill -USR1 1"); code != 0 {
		t.Errorf("exec at the target: %d, %s", code, got)
	}
	said(t, b, d.ID, "still here")
	move(t, b, a, d.ID)
	must(t, a.Stop(t.Context(), d.ID, 0))
	if ctr := state(t, a, d.ID); ctr.State != engine.Exited || ctr.ExitCode != 137 {
		t.Errorf("stopped after it came back: %+v", ctr)
	}
	must(t, a.Remove(t.Context(), d.ID, false))
}

func testMoveOutput(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, counter)
	for range 2 {
		said(t, a, d.ID, "\n20\n")
		move(t, a, b, d.ID)
		before := len(output(t, b, d.ID, ""))
		eventually(t, "output at the target", func() bool { return len(output(t, b, d.ID, "")) > before+40 })
		a, b = b, a
	}
	checkCount(t, output(t, a, d.ID, ""))
}

func testMoveTerminal(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, counter, func(d *engine.Definition) { d.TTY = true })
	said(t, a, d.ID, "\n20\r")
	move(t, a, b, d.ID)
	before := len(output(t, b, d.ID, ""))
	eventually(t, "output at the target", func() bool { return len(output(t, b, d.ID, "")) > before+40 })
	checkCount(t, output(t, b, d.ID, ""))
	if out, _ := execute(t, b, d.ID, "readlink /proc/1/fd/1"); out != "/dev/pts/0\n" {
		t.Errorf("its terminal at the target: %q", out)
	}
}

func testMoveFiles(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	script := `echo root >/etc/mine; rm /etc/group; echo vol >/data/file; echo shm >/dev/shm/file
		echo host >>/etc/hosts; exec 3>/tmp/gone; echo deleted >&3; rm /tmp/gone; exec 4</data/file
		mkfifo /dev/fifo; echo ready; while :; do sleep 0.05; done`
	d := run(t, a, script,
		func(d *engine.Definition) { d.Volumes = []engine.Volume{{Name: "data", Path: "/data"}} })
	said(t, a, d.ID, "ready")
	move(t, a, b, d.ID)
	look := "cat /etc/mine; ls /etc/group 2>&1 | grep -c 'No such'; cat /data/file /dev/shm/file; tail -1 " +
		"/etc/hosts; cat /proc/1/fd/3; cat /proc/1/fd/4; ls -l /dev/fifo | cut -c1; echo a >/dev/null; ls " +
		"/dev"
	want := "root\n1\nvol\nshm\nhost\ndeleted\nvol\np\n"
	if out, _ := execute(t, b, d.ID, look); !strings.HasPrefix(out, want) ||
		!strings.Contains(out, "urandom") {
		t.Errorf("its files at the target: %q", out)
	}
	if out, code := execute(t, b, d.ID, "echo x >/sys/firmware/x"); code == 0 {
		t.Errorf("what is hidden from it can be written to at the target: %q", out)
	}
	// The volume has left with it, so the source can get it back.
	move(t, b, a, d.ID)
	if out, _ := execute(t, a, d.ID, look); !strings.HasPrefix(out, want) {
		t.Errorf("its files after it came back: %q", out)
	}
}

func testMoveLimits(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, "echo ready; while :; do sleep 0.05; done", func(d *engine.Definition) {
		d.Limits = engine.Limits{MemoryBytes: 32 << 20, CPUs: 0.5, Pids: 12}
	})
	said(t, a, d.ID, "ready")
	move(t, a, b, d.ID)
	checkLimits(t, b, d.ID)
	if out, _ := execute(t, b, d.ID,
		"grep -E 'Seccomp:|CapBnd' /proc/1/status"); out != "CapBnd:\t00000000a80425fb\nSeccomp:\t2\n" {
		t.Errorf("at the target: %q", out)
	}
}

func testResume(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, "exec 3>/tmp/x; ln /tmp/x /tmp/y; rm /tmp/x; "+counter)
	said(t, a, d.ID, "\n10\n")
	for _, crash := range []bool{false, true} {
		m := prepare(t, a, b, d.ID)
		m.freeze(t)
		if !crash {
			must(t, m.departure.Close())
		} else {
			a = a.Reopen(t)
		}
		must(t, a.Resume(t.Context(), d.ID))
		must(t, m.arrival.Close())
		must(t, b.Discard(t.Context(), d.ID))
		if got := state(t, a, d.ID).State; got != engine.Running {
			t.Errorf("after Resume: %s", got)
		}
		before := len(output(t, a, d.ID, ""))
		eventually(t, "output after Resume", func() bool { return len(output(t, a, d.ID, "")) > before+20 })
		if out, _ := execute(t, a, d.ID, "ls -A /tmp"); out != "y\n" {
			t.Errorf("the dump left something: %q", out)
		}
	}
	checkCount(t, output(t, a, d.ID, ""))
	move(t, a, b, d.ID) // and it can still be moved
	before := len(output(t, b, d.ID, ""))
	eventually(t, "output at the target", func() bool { return len(output(t, b, d.ID, "")) > before+20 })
	checkCount(t, output(t, b, d.ID, ""))
}

func testDiscard(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, counter,
		func(d *engine.Definition) { d.Volumes = []engine.Volume{{Name: "data", Path: "/data"}} })
	m := prepare(t, a, b, d.ID)
	if got := state(t, b, d.ID).State; got != engine.Arriving {
		t.Errorf("state at the target: %s", got)
	}
	must(t, m.departure.Close())
	must(t, m.arrival.Close())
	must(t, b.Discard(t.Context(), d.ID))
	if _, err := b.Inspect(t.Context(), d.ID); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("after Discard: %v", err)
	}
	must(t, a.Resume(t.Context(), d.ID))
	move(t, a, b, d.ID)
	if err := b.Discard(t.Context(), d.ID); err == nil {
		t.Error("Discard removes a container that runs")
	}
	must(t, b.Salvage(t.Context(), d.ID,
		func(tree files.Tree) error { return fmt.Errorf("%+v of a container that runs", tree) }))
	if got := state(t, b, d.ID).State; got != engine.Running {
		t.Errorf("after a Discard that was refused: %s", got)
	}
}

func testRefused(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, counter)
	said(t, a, d.ID, "\n10\n")
	m := prepare(t, a, b, d.ID)
	m.freeze(t)
	refusal := errors.New("the route could not be set")
	_, err := m.arrival.Restore(t.Context(), engine.Permission{Ask: func() error { return refusal }})
	if !errors.Is(err, refusal) {
		t.Errorf("Restore whose beforeResume fails: %v", err)
	}
	outcome, err := b.Arrived(t.Context(), d.ID)
	must(t, err)
	if outcome != engine.NeverRan {
		t.Errorf("outcome: %s", outcome)
	}
	must(t, b.Discard(t.Context(), d.ID))
	must(t, m.departure.Close())
	must(t, a.Resume(t.Context(), d.ID))
	before := len(output(t, a, d.ID, ""))
	eventually(t, "output after Resume", func() bool { return len(output(t, a, d.ID, "")) > before+20 })
	checkCount(t, output(t, a, d.ID, ""))
}

func testArrived(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, counter)
	arrived := func(n Node) engine.Outcome {
		t.Helper()
		outcome, err := n.Arrived(t.Context(), d.ID)
		must(t, err)
		return outcome
	}
	if got := arrived(b); got != engine.NeverRan {
		t.Errorf("before anything: %s", got)
	}
	m := prepare(t, a, b, d.ID)
	again := b.Reopen(t) // the agent crashed; the processes that it had started are still there
	if got := arrived(again); got != engine.NeverRan {
		t.Errorf("after the agent of the target crashed: %s", got)
	}
	if _, err := m.arrival.Restore(t.Context(), granted); err == nil {
		t.Error("it can be restored although it was said that it never will")
	}
	must(t, again.Discard(t.Context(), d.ID))
	must(t, m.departure.Close())
	must(t, a.Resume(t.Context(), d.ID))
	move(t, a, b, d.ID)
	if got := arrived(b); got != engine.Ran {
		t.Errorf("after the move: %s", got)
	}
	if got := arrived(b.Reopen(t)); got != engine.Ran {
		t.Errorf("after the move, asked by a new engine: %s", got)
	}
}

func testExamine(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "sleep 60", withVolumes(engine.Volume{Name: "data", Path: "/data"}))
	problems := func() []engine.Problem {
		t.Helper()
		found, err := n.Examine(t.Context(), d.ID)
		must(t, err)
		return found
	}
	if found := problems(); len(found) != 0 {
		t.Errorf("an ordinary container: %+v", found)
	}
	mentions := func(word string) bool {
		return slices.ContainsFunc(problems(), func(p engine.Problem) bool {
			return strings.Contains(p.What, word) && p.Why != "" && p.Remedy != ""
		})
	}
	done := make(chan error, 1)
	go func() {
		_, err := n.Exec(t.Context(), d.ID, engine.Exec{Args: []string{"/bin/sleep", "33"}})
		done <- err
	}()
	eventually(t, "the exec to be seen", func() bool { return mentions("sleep") })
	if out, code := execute(t, n, d.ID, "kill $(ps | awk '/[s]leep 33/ {print $1}')"); code != 0 {
		t.Errorf("cannot end the exec: %s", out)
	}
	must(t, <-done)
	must(t, n.Stop(t.Context(), d.ID, 0))
	if _, err := n.Examine(t.Context(), d.ID); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("Examine of one that has ended: %v", err)
	}
}

func testReserve(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, "sleep 60", func(d *engine.Definition) {
		d.Name, d.Volumes = "same", []engine.Volume{{Name: "data", Path: "/data"}}
	})
	check(t, b, "echo x >/data/x", "",
		func(d *engine.Definition) { d.Volumes = []engine.Volume{{Name: "data", Path: "/data"}} })
	run(t, b, "sleep 60", func(d *engine.Definition) { d.Name = "same" })
	problems, err := b.Reserve(t.Context(), state(t, a, d.ID).Definition)
	must(t, err)
	var words []string
	for _, p := range problems {
		words = append(words, p.What)
	}
	if slices.Sort(words); !slices.Equal(words, []string{"name same", "volume data"}) {
		t.Errorf("Reserve: %+v", problems)
	}
	if _, err := b.PrepareRestore(t.Context(), state(t, a, d.ID).Definition, b.Netns(t)); err == nil {
		t.Error("PrepareRestore does what Reserve refuses")
	}
	if all, err := b.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("a refused arrival left something: %+v, %v", all, err)
	}
}

func testIdempotent(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, counter)
	calls := map[string]func() error{
		"Resume":  func() error { return a.Resume(t.Context(), d.ID) },
		"Discard": func() error { return b.Discard(t.Context(), d.ID) },
		"Destroy": func() error { return b.Destroy(t.Context(), d.ID, nil) },
	}
	for name, call := range calls {
		for range 2 {
			if err := call(); err != nil {
				t.Errorf("%s of nothing: %v", name, err)
			}
		}
	}
	if got := state(t, a, d.ID).State; got != engine.Running {
		t.Errorf("a container that does not move is %s after Resume", got)
	}
	m := prepare(t, a, b, d.ID)
	m.freeze(t)
	for range 2 {
		must(t, m.departure.Close())
		must(t, a.Resume(t.Context(), d.ID))
		must(t, m.arrival.Close())
		must(t, b.Discard(t.Context(), d.ID))
	}
	move(t, a, b, d.ID)
	for range 2 {
		must(t, a.Destroy(t.Context(), d.ID, nil))
		must(t, b.Resume(t.Context(), d.ID))
	}
}

func testBusy(t *testing.T, f Fixture) {
	a, b := f.NewNode(t), f.NewNode(t)
	d := run(t, a, counter)
	m := prepare(t, a, b, d.ID)
	m.freeze(t)
	calls := map[string]error{
		"Stop a frozen one":   a.Stop(t.Context(), d.ID, time.Second),
		"Remove a frozen one": a.Remove(t.Context(), d.ID, true),
		"Remove an arrival":   b.Remove(t.Context(), d.ID, true),
		"Stop an arrival":     b.Stop(t.Context(), d.ID, time.Second),
		"PrepareDump of an arrival": func() error {
			_,
				err := b.PrepareDump(t.Context(), d.ID, engine.DumpOptions{})
			return err
		}(),
		"Exec in a frozen one": func() error {
			_, err := a.Exec(t.Context(), d.ID, engine.Exec{Args: []string{"/bin/true"}})
			return err
		}(),
	}
	for name, err := range calls {
		if !errors.Is(err, engine.ErrBusy) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, m.departure.Close())
	must(t, a.Resume(t.Context(), d.ID))
}
