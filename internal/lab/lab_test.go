package lab

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var quick = Link{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond}

func TestUpAndDownLeaveNothing(t *testing.T) {
	before := machineView(t)
	l := up(t, Config{Nodes: 3, Bare: true, NoCheck: true, Link: quick})
	if err := l.Client("phone", "b", Link{}); err != nil {
		t.Fatal(err)
	}
	if seen := added(t, before); len(seen) > 0 {
		t.Errorf("the machine's own namespaces see the lab: %q", seen)
	}
	for _, node := range []string{"a", "b", "c"} {
		if got := run(t, l, node, "hostname"); got != node {
			t.Errorf("host name of %s: %q", node, got)
		}
	}
	run(t, l, "a", "ping", "-c", "1", "-W", "5", "10.77.0.3")
	// A process that outlives its parent, and a process in its own cgroup below the node's.
	run(t, l, "a", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & true")
	run(t, l, "a", "sh", "-c", "mkdir -p /sys/fs/cgroup/unified/x /sys/fs/cgroup/x 2>/dev/null; true")
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	if left := traces(t, l.Name()); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if left := added(t, before); len(left) > 0 {
		t.Errorf("left behind in the machine's namespaces: %q", left)
	}
	if err := l.Down(); !errors.Is(err, ErrNoLab) {
		t.Errorf("taking down what is not there: %v", err)
	}
}

func TestNodeIsPrivate(t *testing.T) {
	l := up(t, Config{Nodes: 2, Bare: true, NoCheck: true, Link: quick})
	for _, dir := range append(ownSettings(), "/run", "/tmp", "/dev/shm", "/var/lib/godwit") {
		path := filepath.Join(dir, "of-a")
		run(t, l, "a", "touch", path)
		if _, err := l.Exec(t.Context(), "b", "test", "-e", path); err == nil {
			t.Errorf("node b sees %s of node a", path)
		}
		if exists(path) {
			t.Errorf("the machine sees %s of node a", path)
		}
	}
	if got := run(t, l, "a", "cat", "/proc/sys/net/ipv4/ip_forward"); got != "1" {
		t.Errorf("ip_forward is %q", got)
	}
	run(t, l, "a", "test", "-c", tunDevice)
	if got := run(t, l, "a", "sh", "-c", "cat /proc/self/cgroup"); strings.Contains(got, cgroupTop) {
		t.Errorf("the node sees its cgroups from outside: %s", got)
	}
	if got := run(t, l, "a", "cat", "/proc/self/mountinfo"); strings.Contains(got, "/../") {
		t.Errorf("the node sees mounts of the machine's cgroups:\n%s", got)
	}
}

func TestCommands(t *testing.T) {
	l := up(t, Config{Nodes: 1, Bare: true, Link: quick})
	cmd, err := l.Command(t.Context(), "a", "sh", "-c", "cat; exit 7")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader("through")
	out, err := cmd.Output()
	if string(out) != "through" || cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("got %q, %v", out, err)
	}
	_, err = l.Exec(t.Context(), "a", "no-such-program")
	if err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("a program that is not there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if cmd, err = l.Command(ctx, "a", "sleep", "4711"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	asleep := func() bool {
		_, err := l.Exec(t.Context(), "a", "pgrep", "-f",
			"^sleep 4711")
		return err == nil
	}
	within(t, 5*time.Second, "the command runs", asleep)
	cancel()
	_ = cmd.Wait()
	within(t, 5*time.Second, "the command ends with the one who waits", func() bool { return !asleep() })
	// The init must reap a process without a parent.
	run(t, l, "a", "sh", "-c", "(sleep 0.01 &) ; true")
	within(t, 5*time.Second, "no zombies", func() bool {
		out, err := l.Exec(t.Context(), "a", "ps", "-eo", "stat=")
		return err == nil && !strings.Contains(out, "Z")
	})
}

func TestDownAfterCrashes(t *testing.T) {
	crashes := map[string]func(t *testing.T, l *Lab, s *state){
		"init": func(t *testing.T, l *Lab, _ *state) {
			if err := l.Kill("a"); err != nil {
				t.Fatal(err)
			}
			within(t, 5*time.Second, "the node is dead",
				func() bool { _, err := l.PID("a"); return err != nil })
			_, err := l.Exec(t.Context(), "a", "true")
			if err == nil || !strings.Contains(err.Error(), "not running") {
				t.Errorf("a command in a dead node: %v", err)
			}
		},
		"relay": func(t *testing.T, l *Lab, s *state) {
			if s.Wires != WiresRelay {
				return
			}
			if err := unix.Kill(s.RelayPID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			within(t, 5*time.Second, "status tells that the relay is dead", func() bool {
				status, err := l.Status()
				return err == nil && !status.Relay.Running
			})
		},
		"description damaged": func(t *testing.T, _ *Lab, s *state) {
			if err := os.WriteFile(statePath(s.Name), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"run directory lost": func(t *testing.T, _ *Lab, s *state) {
			if err := os.RemoveAll(runDirectory(s.Name)); err != nil {
				t.Fatal(err)
			}
		},
		"frozen processes": func(t *testing.T, l *Lab, s *state) {
			run(t, l, "a", "sh", "-c", `exec >/dev/null 2>&1; mkdir -p /sys/fs/cgroup/freezer/f; sleep 1000 &
				d=/sys/fs/cgroup/freezer/f; [ -e $d/freezer.state ] || d=/sys/fs/cgroup/f; mkdir -p $d
				echo $! > $d/cgroup.procs
				if [ -e $d/freezer.state ]; then echo FROZEN > $d/freezer.state; else echo 1 > $d/cgroup.freeze; fi`)
		},
	}
	for what, crash := range crashes {
		t.Run(what, func(t *testing.T) {
			l := up(t, Config{Nodes: 2, Bare: true, NoCheck: true, Link: quick})
			s, err := loadState(l.Name())
			if err != nil {
				t.Fatal(err)
			}
			crash(t, l, s)
			if err := l.Down(); err != nil {
				t.Fatal(err)
			}
			if left := traces(t, l.Name()); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestDownAfterUpWasKilled kills the program that makes a lab at many points.
func TestDownAfterUpWasKilled(t *testing.T) {
	name := uniqueName(t)
	t.Cleanup(func() { _ = Down(name) }) // if the test failed before its own Down
	for after := time.Duration(0); after < 160*time.Millisecond; after += 8 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_ = exec.CommandContext(ctx, os.Args[0], "up-for-test", name).Run() // killed, or done
		cancel()
		if err := Down(name); err != nil && !errors.Is(err, ErrNoLab) {
			t.Fatalf("killed after %s: %v", after, err)
		}
		if left := traces(t, name); len(left) > 0 {
			t.Fatalf("killed after %s: left behind: %q", after, left)
		}
	}
}

func TestTwoLabsAtOnce(t *testing.T) {
	first := up(t, Config{Nodes: 2, Bare: true, NoCheck: true, Link: quick})
	t.Run("second", func(t *testing.T) {
		second := up(t, Config{Nodes: 2, Bare: true, NoCheck: true, Link: quick})
		run(t, second, "a", "ping", "-c", "1", "-W", "5", "10.77.0.2")
		if _, err := Up(t.Context(),
			Config{Name: second.Name(), Nodes: 1, Program: os.Args[0]}); !errors.Is(err, ErrExists) {
			t.Errorf("a lab of the same name: %v", err)
		}
		names, err := List()
		if err != nil || len(missing([]string{first.Name(), second.Name()}, names)) > 0 {
			t.Errorf("list: %v %v", names, err)
		}
		if err := second.Down(); err != nil {
			t.Fatal(err)
		}
	})
	run(t, first, "a", "ping", "-c", "1", "-W", "5", "10.77.0.2")
}

func TestStateSizeFillsUp(t *testing.T) {
	l := up(t, Config{Nodes: 1, Bare: true, NoCheck: true, StateSizeBytes: 2 << 20})
	_, err := l.Exec(t.Context(), "a", "dd", "if=/dev/zero", "of=/var/lib/godwit/big", "bs=1M", "count=3")
	if err == nil || !strings.Contains(err.Error(), "No space left") {
		t.Errorf("writing more than the state holds: %v", err)
	}
}

func TestUpThatFailsLeavesNothing(t *testing.T) {
	name := uniqueName(t)
	_, err := Up(t.Context(), Config{Name: name, Nodes: 2, NoCheck: true, Link: quick, Program: os.Args[0],
		AgentArgs: []string{"--broken"}})
	if err == nil || !strings.Contains(err.Error(), "broken on purpose") {
		t.Errorf("an agent that does not start: %v", err)
	}
	if left := traces(t, name); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := func(string) { cancel() }
	if _, err := Up(ctx, Config{Name: name, Nodes: 3, Link: quick, Program: os.Args[0],
		Progress: cancelled}); !errors.Is(err, context.Canceled) {
		t.Errorf("up that was cancelled: %v", err)
	}
	if left := traces(t, name); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestAgents(t *testing.T) {
	l := up(t, Config{Nodes: 2, NoCheck: true, Link: quick, Program: os.Args[0], AgentArgs: []string{"--x"}})
	if got := run(t, l, "a", "cat", nodeStateDirectory+
		"/identity"); got != "[node init --name a --address 10.77.0.1 --pool 10.88.0.0/16]" {
		t.Errorf("identity of a: %s", got)
	}
	want := "[node join 10.77.0.1:7443 secret-of-a --name b --address 10.77.0.2]"
	if got := run(t, l, "b", "cat", nodeStateDirectory+"/identity"); got != want {
		t.Errorf("identity of b: %s", got)
	}
	run(t, l, "b", "sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
	if err := l.StartAgent(t.Context(), "b"); !errors.Is(err, ErrExists) {
		t.Errorf("a second agent: %v", err)
	}
	if err := l.KillAgent(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if pid, err := l.AgentPID("b"); pid != 0 || err != nil {
		t.Errorf("the agent is there after it was killed: %d %v", pid, err)
	}
	run(t, l, "b", "pgrep", "-f", "^sleep 1000")
	if err := l.StartAgentWith(t.Context(), "b", []string{"TESTED=yes"}, "--again"); err != nil {
		t.Fatal(err)
	}
	pid, err := l.AgentPID("b")
	if err != nil {
		t.Fatal(err)
	}
	status, err := l.Status()
	if err != nil || status.Nodes[1].Agent.PID != pid || !status.Nodes[1].Agent.Running {
		t.Errorf("status of the agent: %+v %v", status.Nodes, err)
	}
	environment, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "environ"))
	if err != nil || !strings.Contains(string(environment), "TESTED=yes") {
		t.Errorf("environment of the agent: %q %v", environment, err)
	}
	log, err := os.ReadFile(l.AgentLog("b"))
	if err != nil || !strings.Contains(string(log), "--x") || !strings.Contains(string(log), "--again") {
		t.Errorf("log of the agent: %q %v", log, err)
	}
}

func TestBadInput(t *testing.T) {
	for _, config := range []Config{
		{Name: "Big", Nodes: 2}, {Name: "a/b", Nodes: 2}, {Name: "..", Nodes: 1}, {Nodes: 27, Name: "x"},
		{Name: "x", Nodes: 2, Link: Link{Loss: 2}}, {Name: "x", Nodes: 2, Link: Link{Jitter: time.Second}},
		{Name: "x", Nodes: 2, Link: Link{BandwidthBitsPerSecond: 1}},
		{Name: "x", Nodes: 2, StateSizeBytes: 5},
		{Name: "x", Nodes: 2, Wires: "string"}, {Name: "x", Nodes: 2, Program: "/no/such/program"},
	} {
		if _, err := Up(t.Context(), config); err == nil {
			t.Errorf("accepted %+v", config)
			_ = Down(config.Name)
		}
	}
	if _, err := Open("no-such-lab"); !errors.Is(err, ErrNoLab) {
		t.Errorf("open: %v", err)
	}
	if exists(filepath.Join(RunDirectory, "x")) {
		t.Error("a lab that was refused has a directory")
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

func TestReboot(t *testing.T) {
	l := up(t, Config{Nodes: 3, Bare: true, NoCheck: true, Link: quick})
	for _, node := range []string{"a", "b"} {
		if err := l.Client("of-"+node, node, Link{}); err != nil {
			t.Fatal(err)
		}
	}
	run(t, l, "b", "sh", "-c", "echo kept > /var/lib/godwit/file; echo lost > /run/file; sleep 1234 "+
		">/dev/null 2>&1 &")
	if err := l.Reboot("b"); err != nil {
		t.Fatal(err)
	}
	if got := run(t, l, "b", "cat", "/var/lib/godwit/file"); got != "kept" {
		t.Errorf("the disk has %q", got)
	}
	if _, err := l.Exec(t.Context(), "b", "cat", "/run/file"); err == nil {
		t.Error("what was in memory is still there")
	}
	if _, err := l.Exec(t.Context(), "b", "pgrep", "-f", "^sleep 1234"); err == nil {
		t.Error("a process is still there")
	}
	for _, machine := range []string{"a", "c", "of-a", "of-b"} {
		run(t, l, machine, "ping", "-c", "1", "-W", "5", nodeAddress(2).String())
	}
	run(t, l, "c", "ping", "-c", "1", "-W", "5", clientAddress(2).String())
}
