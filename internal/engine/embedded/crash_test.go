package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// dumped freezes and dumps a container.
func dumped(t *testing.T, n *testNode, id string) engine.Departure {
	t.Helper()
	departure, err := n.PrepareDump(t.Context(), id, engine.DumpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { departure.Close() })
	if _, err := departure.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := departure.Dump(t.Context(), mountMemoryDir(t)); err != nil {
		t.Fatal(err)
	}
	return departure
}

// monitorOf returns a container's monitor.
func monitorOf(t *testing.T, n *testNode, id string) checkpoint.Identity {
	t.Helper()
	var live liveState
	if err := durable.Load(n.paths.of(id).runtime(), &live); err != nil {
		t.Fatal(err)
	}
	return live.Monitor
}

// leftovers lists everything of a container that is left on its node.
func leftovers(t *testing.T, n *testNode, id string) []string {
	t.Helper()
	var left []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), n.paths.of(id).runDir()) {
		left = append(left, "a mount")
	}
	place := n.paths.of(id)
	for _, path := range []string{place.dir(), place.runDir(), n.paths.runcState(id)} {
		if durable.Exists(path) {
			left = append(left, path)
		}
	}
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer",
		"/sys/fs/cgroup/memory"} {
		if durable.Exists(hierarchy + place.cgroup()) {
			left = append(left, hierarchy+place.cgroup())
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		line, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if err == nil && strings.Contains(string(line), place.runDir()) {
			left = append(left, "process "+entry.Name()+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return left
}

// wantNothing waits until nothing is left of a container.
func wantNothing(t *testing.T, n *testNode, id string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := leftovers(t, n, id)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left over: %v", left)
		}
	}
}

func TestDestroyLeavesNothing(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("monitor killed %v", killed), func(t *testing.T) {
			n := newTestNode(t)
			d := definition(t, "sh", "-c", "while :; do sleep 0.05; done")
			d.Volumes = []engine.Volume{{Name: "v", Path: "/v"}}
			n.start(d)
			dumped(t, n, d.ID)
			if killed {
				if err := monitorOf(t, n, d.ID).Kill(); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.Destroy(t.Context(), d.ID, nil); err != nil {
				t.Fatal(err)
			}
			wantNothing(t, n, d.ID)
			if durable.Exists(n.paths.volume("v")) {
				t.Error("its volume is left")
			}
		})
	}
}

func TestResumeAfterTheMonitorWasKilled(t *testing.T) {
	n := newTestNode(t)
	d := n.start(definition(t, "sh", "-c", "while :; do sleep 0.05; done"))
	dumped(t, n, d.ID)
	monitor := monitorOf(t, n, d.ID)
	if err := errors.Join(monitor.Kill(), waitGone(t.Context(), monitor)); err != nil {
		t.Fatal(err)
	}
	if err := n.Resume(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	ctr, err := n.Inspect(t.Context(), d.ID)
	if err != nil || ctr.State != engine.Running {
		t.Errorf("after Resume: %+v, %v", ctr, err)
	}
	if problems, err := n.Examine(t.Context(), d.ID); err != nil || len(problems) != 1 {
		t.Errorf("Examine: %+v, %v", problems, err)
	}
	if err := n.Stop(t.Context(), d.ID, 0); err != nil {
		t.Error(err)
	}
	if ctr, err := n.Inspect(t.Context(), d.ID); err != nil || ctr.State != engine.Exited ||
		ctr.ExitCode != exitUnknown {
		t.Errorf("after Stop: %+v, %v", ctr, err)
	}
	if err := n.Remove(t.Context(), d.ID, false); err != nil {
		t.Error(err)
	}
	wantNothing(t, n, d.ID)
}

func TestArrivalWhoseHelpersWereKilled(t *testing.T) {
	source, target := newTestNode(t), newTestNode(t)
	d := definition(t, "sh", "-c", "while :; do sleep 0.05; done")
	d.Volumes = []engine.Volume{{Name: "v", Path: "/v"}}
	source.start(d)
	ctr, err := source.Inspect(t.Context(), d.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, victim := range []string{"monitor", "runc", "criu"} {
		t.Run(victim, func(t *testing.T) {
			arrival, err := target.PrepareRestore(t.Context(), ctr.Definition, newNetns(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { arrival.Close() })
			signalHelper(t, monitorOf(t, target, d.ID), victim, unix.SIGKILL)
			outcome, err := target.Arrived(t.Context(), d.ID)
			if err != nil || outcome != engine.NeverRan {
				t.Errorf("Arrived: %s, %v", outcome, err)
			}
			if err := target.Discard(t.Context(), d.ID); err != nil {
				t.Fatal(err)
			}
			wantNothing(t, target, d.ID)
			if durable.Exists(target.paths.volume("v")) {
				t.Error("its volume is left")
			}
		})
	}
}

// TestArrivalWhoseHelpersHang stops a helper of an arrival, and checks that Close does not wait for the
// helper for ever and leaves nothing behind.
func TestArrivalWhoseHelpersHang(t *testing.T) {
	t.Parallel()
	source, target := newTestNode(t), newTestNode(t)
	d := source.start(definition(t, "sh", "-c", "while :; do sleep 0.05; done"))
	ctr, err := source.Inspect(t.Context(), d.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, victim := range []string{"monitor", "runc", "criu"} {
		t.Run(victim, func(t *testing.T) {
			arriving, err := target.PrepareRestore(t.Context(), ctr.Definition, newNetns(t))
			if err != nil {
				t.Fatal(err)
			}
			arriving.(*arrival).patience = 100 * time.Millisecond
			signalHelper(t, monitorOf(t, target, d.ID), victim, unix.SIGSTOP)
			if err := arriving.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if err := target.Discard(t.Context(), d.ID); err != nil {
				t.Fatal(err)
			}
			wantNothing(t, target, d.ID)
		})
	}
}

// signalHelper sends a signal to the monitor, or to processes that it has started, by name.
func signalHelper(t *testing.T, monitor checkpoint.Identity, name string, signal unix.Signal) {
	t.Helper()
	victims := []checkpoint.Identity{monitor}
	if name != "monitor" {
		victims = helpers(t, monitor, name)
	}
	for _, process := range victims {
		if err := unix.Kill(process.PID, signal); err != nil {
			t.Fatal(err)
		}
	}
}

// helpers returns the processes of this name that a monitor has started.
func helpers(t *testing.T, monitor checkpoint.Identity, name string) []checkpoint.Identity {
	t.Helper()
	all, err := sessionOf(monitor)
	if err != nil {
		t.Fatal(err)
	}
	var found []checkpoint.Identity
	for _, process := range all {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", process.PID))
		if err == nil && strings.TrimSpace(string(comm)) == name {
			found = append(found, process)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no %s among %d processes", name, len(all))
	}
	return found
}

// linkedNetns makes network namespaces for a container and for a peer, connected by a veth pair. It returns
// the path of the first, and a function that runs another function in the second.
func linkedNetns(t *testing.T) (string, func(func() error) error) {
	t.Helper()
	path := newNetns(t)
	work := make(chan func() error)
	results := make(chan error)
	go func() { // this thread lives in the peer's namespace and ends with it
		runtime.LockOSThread()
		peer, err := netns.New()
		if err == nil {
			defer peer.Close()
		}
		results <- err
		for f := range work {
			results <- f()
		}
	}()
	if err := <-results; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(work) })
	do := func(f func() error) error { work <- f; return <-results }
	script := `set -e
		ip link set lo up
		ip link add peer0 type veth peer name eth0
		ip link set eth0 netns $$NS
		ip addr add 10.99.0.1/24 dev peer0; ip link set peer0 up`
	err := do(func() error {
		out, err := exec.Command("sh", "-c", strings.ReplaceAll(script, "$$NS", path)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		inside := "ip addr add 10.99.0.2/24 dev eth0 && ip link set eth0 up"
		out, err = exec.Command("nsenter", "--net="+path, "sh", "-c", inside).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path, do
}

// TestDestroyIsSilent checks that the peers of a destroyed container's connections receive nothing,
// although there is data that the container has not read, for which the kernel would send a reset.
func TestDestroyIsSilent(t *testing.T) {
	n := newTestNode(t)
	path, inPeer := linkedNetns(t)
	d := definition(t, "sh", "-c", "nc -l -p 7 -e sh -c 'echo hello; sleep 60'")
	if err := n.Create(t.Context(), d, path); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	waitFor(t, "the server", func() bool {
		err := inPeer(func() (err error) { conn, err = net.Dial("tcp", "10.99.0.2:7"); return err })
		return err == nil
	})
	defer conn.Close()
	buffer := make([]byte, 64)
	if got, err := conn.Read(buffer); err != nil || string(buffer[:got]) != "hello\n" {
		t.Fatalf("read %q, %v", buffer[:got], err)
	}
	if _, err := conn.Write([]byte("never read")); err != nil {
		t.Fatal(err)
	}
	dumped(t, n, d.ID)
	if err := n.Destroy(t.Context(), d.ID, nil); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(buffer); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the peer hears: %v", err)
	}
}

// TestResumeKeepsConnections checks that a connection continues after a dump was given up.
func TestResumeKeepsConnections(t *testing.T) {
	n := newTestNode(t)
	path, inPeer := linkedNetns(t)
	d := definition(t, "sh", "-c", "nc -l -p 7 -e cat")
	if err := n.Create(t.Context(), d, path); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	waitFor(t, "the server", func() bool {
		err := inPeer(func() (err error) { conn, err = net.Dial("tcp", "10.99.0.2:7"); return err })
		return err == nil
	})
	defer conn.Close()
	echo := func(text string) {
		t.Helper()
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 64)
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if got, err := conn.Read(buffer); err != nil || string(buffer[:got]) != text {
			t.Fatalf("echo of %q: %q, %v", text, buffer[:got], err)
		}
	}
	echo("before")
	for range 2 {
		departure := dumped(t, n, d.ID)
		if err := departure.Close(); err != nil {
			t.Fatal(err)
		}
		if err := n.Resume(context.Background(), d.ID); err != nil {
			t.Fatal(err)
		}
		echo("after")
	}
}
