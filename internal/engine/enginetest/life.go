package enginetest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// Run runs the whole suite.
func Run(t *testing.T, f Fixture) {
	tests := []struct {
		name string
		test func(*testing.T, Fixture)
	}{
		{"ends", testEnds}, {"names", testNames}, {"logs", testLogs}, {"tail", testTail},
		{"follow", testFollow}, {"exec", testExec},
		{"exec errors", testExecErrors}, {"stop", testStop}, {"remove", testRemove}, {"unknown", testUnknown},
		{"environment", testEnvironment}, {"users", testUsers}, {"limits", testLimits},
		{"throttle", testThrottle},
		{"isolation", testIsolation},
		{"read-only", testReadOnly}, {"volumes", testVolumes}, {"stored volumes", testStoredVolumes},
		{"sharing", testSharing},
		{"terminal", testTerminal}, {"reopen", testReopen},
		{"move", testMove}, {"move output", testMoveOutput}, {"move terminal", testMoveTerminal},
		{"move files", testMoveFiles}, {"move volumes", testMoveVolumes},
		{"arrive volumes", testArriveVolumes},
		{"move limits", testMoveLimits}, {"resume", testResume}, {"discard", testDiscard},
		{"refused at the last moment", testRefused}, {"arrived", testArrived}, {"examine", testExamine},
		{"reserve", testReserve}, {"idempotent", testIdempotent}, {"busy", testBusy},
	}
	for _, one := range tests {
		t.Run(one.name, func(t *testing.T) { one.test(t, f) })
	}
}

func testEnds(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "exit 7")
	ctr := ended(t, n, d.ID)
	if ctr.ExitCode != 7 || ctr.PID != 0 || ctr.Started.IsZero() || ctr.Finished.Before(ctr.Started) {
		t.Errorf("after its end: %+v", ctr)
	}
	killed := run(t, n, "kill -9 $$; sleep 60 & wait")
	// The first process of a pid namespace is immune to its own signals: it goes on, and is stopped.
	must(t, n.Stop(t.Context(), killed.ID, 0))
	if ctr := ended(t, n, killed.ID); ctr.ExitCode != 128+9 {
		t.Errorf("exit code after SIGKILL: %d", ctr.ExitCode)
	}
	bad := n.Define(t, engine.Definition{Args: []string{"/no/such/program"}})
	if err := n.TryRun(t, bad); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("run of a program that does not exist: %v", err)
	}
}

func testNames(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "sleep 60", func(d *engine.Definition) { d.Name = "first" })
	run(t, n, "sleep 60", func(d *engine.Definition) { d.Name = "a-second" })
	for _, ref := range []string{"first", d.ID, d.ID[:16]} {
		if ctr := state(t, n, ref); ctr.Definition.ID != d.ID {
			t.Errorf("Inspect(%q) finds %s", ref, ctr.Definition.Name)
		}
	}
	again := define(t, n, "true", func(d *engine.Definition) { d.Name = "first" })
	if err := n.TryRun(t, again); !errors.Is(err, engine.ErrNameTaken) {
		t.Errorf("a second container of the same name: %v", err)
	}
	all, err := n.List(t.Context())
	must(t, err)
	var names []string
	for _, ctr := range all {
		names = append(names, ctr.Definition.Name)
	}
	if !slices.Equal(names, []string{"a-second", "first"}) {
		t.Errorf("List: %v", names)
	}
}

func testLogs(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, `echo one; echo two >&2; printf 'a\0b\377'; printf '\nlast'`)
	ended(t, n, d.ID)
	if got := output(t, n, d.ID, "stdout"); got != "one\na\x00b\xff\nlast" {
		t.Errorf("stdout: %q", got)
	}
	if got := output(t, n, d.ID, "stderr"); got != "two\n" {
		t.Errorf("stderr: %q", got)
	}
	failure := errors.New("reader is gone")
	err := n.Logs(t.Context(), d.ID, engine.LogOptions{Tail: -1},
		func(engine.LogEntry) error { return failure })
	if !errors.Is(err, failure) {
		t.Errorf("error of emit: %v", err)
	}
	big := run(t, n, "dd if=/dev/zero bs=100000 count=3 2>/dev/null | tr '\\0' x")
	ended(t, n, big.ID)
	if got := output(t, n, big.ID, "stdout"); got != strings.Repeat("x", 300000) {
		t.Errorf("a long line comes with %d bytes", len(got))
	}
}

func testTail(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "echo one; echo two; printf last")
	ended(t, n, d.ID)
	var tail bytes.Buffer
	must(t, n.Logs(t.Context(), d.ID, engine.LogOptions{Tail: 1}, func(e engine.LogEntry) error {
		if e.Time.IsZero() {
			t.Error("an entry without a time")
		}
		tail.Write(e.Data)
		return nil
	}))
	if tail.String() != "last" {
		t.Errorf("the last line: %q", tail.String())
	}
}

func testFollow(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "for i in 1 2 3; do echo $i; sleep 0.1; done")
	var all bytes.Buffer
	must(t, n.Logs(t.Context(), d.ID, engine.LogOptions{Follow: true, Tail: -1},
		func(e engine.LogEntry) error {
			all.Write(e.Data)
			return nil
		}))
	if all.String() != "1\n2\n3\n" {
		t.Errorf("followed output: %q", all.String())
	}
	endless := run(t, n, "echo begin; sleep 60")
	ctx, cancel := context.WithCancel(t.Context())
	err := n.Logs(ctx, endless.ID, engine.LogOptions{Follow: true, Tail: -1}, func(engine.LogEntry) error {
		cancel()
		return nil
	})
	if err != nil {
		t.Errorf("Logs whose context ended: %v", err)
	}
}

func testExec(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "sleep 60",
		func(d *engine.Definition) { d.Env = append(d.Env, "A=1", "B=1"); d.Dir = "/tmp" })
	var out, errs bytes.Buffer
	code, err := n.Exec(t.Context(), d.ID, engine.Exec{
		Args: []string{"/bin/sh", "-c", "cat; echo $A $B $PWD; id -u; echo oops >&2; exit 3"},
		Env:  []string{"B=2"},
		User: "ann", Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &errs,
	})
	must(t, err)
	if code != 3 || out.String() != "in\n1 2 /tmp\n1001\n" || errs.String() != "oops\n" {
		t.Errorf("exec: code %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
	if got, code := execute(t, n, d.ID, "exit 255"); code != 255 || got != "" {
		t.Errorf("exit 255: code %d, %q", code, got)
	}
	got, err := n.Exec(t.Context(), d.ID, engine.Exec{Args: []string{"/bin/pwd"}, Dir: "/etc", Stdout: &out})
	must(t, err)
	if got != 0 || !strings.HasSuffix(out.String(), "/etc\n") {
		t.Errorf("exec in /etc: code %d, %q", got, out.String())
	}
}

func testExecErrors(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "sleep 60")
	if _, err := n.Exec(t.Context(), d.ID, engine.Exec{Args: []string{"/no/such/program"}}); err == nil {
		t.Error("exec of a program that does not exist succeeds")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := n.Exec(ctx, d.ID, engine.Exec{Args: []string{"/bin/sleep", "777"}}); err == nil {
		t.Error("exec whose context ended succeeds")
	}
	eventually(t, "the process of a cancelled exec to end", func() bool {
		out, _ := execute(t, n, d.ID, "ps | grep -c '[s]leep 777'")
		return strings.TrimSpace(out) == "0"
	})
	ended := run(t, n, "true")
	eventually(t, "its end", func() bool { return state(t, n, ended.ID).State == engine.Exited })
	if _, err := n.Exec(t.Context(), ended.ID, engine.Exec{Args: []string{"/bin/true"}}); !errors.Is(err,
		engine.ErrNotRunning) {
		t.Errorf("exec in a container that has ended: %v", err)
	}
}

func testStop(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	polite := run(t, n, "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
	said(t, n, polite.ID, "ready")
	must(t, n.Stop(t.Context(), polite.ID, patience))
	if ctr := state(t, n, polite.ID); ctr.State != engine.Exited || ctr.ExitCode != 5 {
		t.Errorf("after a polite stop: %+v", ctr)
	}
	if !strings.Contains(output(t, n, polite.ID, ""), "bye") {
		t.Error("its last words are lost")
	}
	must(t, n.Stop(t.Context(), polite.ID, 0)) // has ended
	deaf := run(t, n, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	said(t, n, deaf.ID, "ready")
	must(t, n.Stop(t.Context(), deaf.ID, 50*time.Millisecond))
	if ctr := state(t, n, deaf.ID); ctr.State != engine.Exited || ctr.ExitCode != 137 {
		t.Errorf("after an impolite stop: %+v", ctr)
	}
}

func testRemove(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "sleep 60")
	if err := n.Remove(t.Context(), d.ID, false); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("Remove of one that runs: %v", err)
	}
	must(t, n.Remove(t.Context(), d.ID, true))
	if _, err := n.Inspect(t.Context(), d.ID); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("Inspect after Remove: %v", err)
	}
	d = run(t, n, "true")
	ended(t, n, d.ID)
	must(t, n.Remove(t.Context(), d.ID, false))
}

func testUnknown(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	ctx, id := t.Context(), strings.Repeat("ab", 32)
	calls := map[string]func(string) error{
		"Inspect": func(id string) error { _, err := n.Inspect(ctx, id); return err },
		"Stop":    func(id string) error { return n.Stop(ctx, id, 0) },
		"Remove":  func(id string) error { return n.Remove(ctx, id, true) },
		"Logs":    func(id string) error { return n.Logs(ctx, id, engine.LogOptions{}, nil) },
		"Exec": func(id string) error {
			_,
				err := n.Exec(ctx, id, engine.Exec{Args: []string{"x"}})
			return err
		},
		"Examine": func(id string) error { _, err := n.Examine(ctx, id); return err },
		"PrepareDump": func(id string) error {
			_,
				err := n.PrepareDump(ctx, id, engine.DumpOptions{})
			return err
		},
		"Trees":       func(id string) error { _, err := n.Trees(ctx, id); return err },
		"Halt":        func(id string) error { _, err := n.Halt(ctx, id, engine.Leave{}); return err },
		"Revive":      func(id string) error { _, err := n.Revive(ctx, id); return err },
		"Ports":       func(id string) error { _, err := n.Ports(ctx, id); return err },
		"ExamineAnew": func(id string) error { _, err := n.ExamineAnew(ctx, id); return err },
	}
	for name, call := range calls {
		for _, ref := range []string{id, "", "../../etc", "no-such-name"} {
			if err := call(ref); !errors.Is(err, engine.ErrNotFound) {
				t.Errorf("%s(%q): %v", name, ref, err)
			}
		}
	}
}

func testReopen(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "i=0; while :; do echo $i; i=$((i+1)); sleep 0.02; done")
	said(t, n, d.ID, "5\n")
	again := n.Reopen(t)
	if ctr := state(t, again, d.ID); ctr.State != engine.Running || ctr.PID == 0 {
		t.Errorf("after the engine was opened again: %+v", ctr)
	}
	before := len(output(t, again, d.ID, ""))
	eventually(t, "more output", func() bool { return len(output(t, again, d.ID, "")) > before })
	must(t, again.Stop(t.Context(), d.ID, 0))
	if ctr := state(t, again, d.ID); ctr.ExitCode != 137 {
		t.Errorf("exit code %d", ctr.ExitCode)
	}
}
