package criu

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// dumped returns a container that was dumped and killed, with a restore of it waiting in the proxy.
func dumped(t *testing.T) (*container, *client, *restore) {
	t.Helper()
	c := newContainer(t)
	client := c.dial()
	client.count()
	c.dump()
	c.killQuietly()
	r := c.startRestore()
	if err := r.proxy.WaitReady(deadline(t)); err != nil {
		t.Fatalf("%v\n%s", err, r.logs())
	}
	return c, client, r
}

// neverRan checks that a restore has failed for good: there is no record and no process, and Ran reports
// that.
func (r *restore) neverRan() {
	r.c.t.Helper()
	if err := <-r.done; err == nil {
		r.c.t.Error("runc restore succeeded")
	}
	ran, err := Ran(deadline(r.c.t), r.record)
	must(r.c.t, err)
	if ran {
		r.c.t.Error("the record says that the container was allowed to run")
	}
	r.nothingRuns()
}

// nothingRuns checks that no process of the restore is left.
func (r *restore) nothingRuns() {
	r.c.t.Helper()
	group, err := cgroup.Open(r.c.cgroupsPath)
	if err != nil {
		return // runc has removed it
	}
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		pids, err := group.Procs()
		must(r.c.t, err)
		if len(pids) == 0 {
			return
		}
		if time.Now().After(until) {
			r.c.t.Errorf("processes %v are left", pids)
			return
		}
	}
}

// TestNothingRunsBeforeTheAnswer queries the container while it waits for permission to run, and checks
// that there is no answer.
func TestNothingRunsBeforeTheAnswer(t *testing.T) {
	c, client, r := dumped(t)
	must(t, client.send("count"))
	_, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error {
		if _, err := os.Stat(r.record); err == nil {
			t.Error("the record exists before the permission")
		}
		c.unplug(false) // the query is retransmitted, and finds the socket
		must(t, client.conn.SetReadDeadline(time.Now().Add(500*time.Millisecond)))
		if line, err := client.lines.ReadString('\n'); err == nil {
			t.Errorf("the container answers %q before it may run", line)
		}
		return nil
	})
	must(t, err)
	must(t, <-r.done)
	c.attach()
	must(t, client.conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	if line, err := client.lines.ReadString('\n'); err != nil || line != "2\n" {
		t.Errorf("answer %q, %v, want 2", line, err)
	}
	ran, err := Ran(deadline(t), r.record)
	must(t, err)
	if !ran {
		t.Error("Ran says that it did not run")
	}
}

// TestRestoredProcess checks what `runc restore` through the proxy leaves: parent, cgroups, namespaces.
func TestRestoredProcess(t *testing.T) {
	c, _, r := dumped(t)
	if pids := proxyPIDs(t, r); len(pids) != 1 {
		t.Errorf("in the container's cgroup before the restore: %v, want CRIU alone", pids)
	}
	resumed, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { return nil })
	must(t, err)
	must(t, <-r.done)
	c.attach()
	if resumed.PID != c.pid {
		t.Errorf("resumed process %d, runc says %d", resumed.PID, c.pid)
	}
	p, err := kernel.ReadProcess(c.pid)
	must(t, err)
	if p.Parent != os.Getpid() {
		t.Errorf("parent is %d, want this process, the nearest that collects orphans", p.Parent)
	}
	own, err := os.Readlink("/proc/self/ns/cgroup")
	must(t, err)
	inside, err := os.Readlink("/proc/" + itoa(c.pid) + "/ns/cgroup")
	must(t, err)
	if own == inside {
		t.Error("the container is in the node's cgroup namespace")
	}
	frozen, err := c.group.Frozen()
	must(t, err)
	if frozen {
		t.Error("the frozen state was restored")
	}
}

// proxyPIDs returns the processes in the container's cgroup while the restore waits.
func proxyPIDs(t *testing.T, r *restore) []int {
	t.Helper()
	group, err := cgroup.Open(r.c.cgroupsPath)
	must(t, err)
	pids, err := group.Procs()
	must(t, err)
	return pids
}

// TestRefused refuses at the last moment.
func TestRefused(t *testing.T) {
	_, _, r := dumped(t)
	no := errors.New("the route cannot be made")
	_, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { return no })
	if !errors.Is(err, no) || errors.Is(err, ErrUncertain) {
		t.Errorf("Go: %v, want %v", err, no)
	}
	r.neverRan()
}

// TestOpened checks that the network is opened when there is a record, and not if there can be none.
func TestOpened(t *testing.T) {
	yes := func() error { return nil }
	t.Run("with a record", func(t *testing.T) {
		c, _, r := dumped(t)
		recorded := false
		options := ProxyOptions{Open: func() error { recorded = exists(r.record); return nil }}
		_, err := r.proxy.Go(deadline(t), options, yes)
		must(t, err)
		must(t, <-r.done)
		c.attach()
		if !recorded {
			t.Error("it was opened before there was a record, or not at all")
		}
	})
	t.Run("in vain", func(t *testing.T) {
		_, _, r := dumped(t)
		no := errors.New("the route cannot be made")
		options := ProxyOptions{Open: func() error { return no }}
		_, err := r.proxy.Go(deadline(t), options, yes)
		if !errors.Is(err, no) || !errors.Is(err, ErrUncertain) {
			t.Errorf("Go: %v, want %v, and that the record tells", err, no)
		}
		r.neverRan()
	})
	t.Run("without a record", func(t *testing.T) {
		_, _, r := dumped(t)
		options := ProxyOptions{Open: func() error { t.Error("it is opened"); return nil }}
		taken := func() error { return os.WriteFile(r.record, nil, 0o600) }
		if _, err := r.proxy.Go(deadline(t), options, taken); err == nil {
			t.Error("it runs")
		}
		r.neverRan()
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestAgentDies closes the agent's side before and during the restore.
func TestAgentDies(t *testing.T) {
	t.Run("before the images are there", func(t *testing.T) {
		_, _, r := dumped(t)
		must(t, r.proxy.Close())
		r.neverRan()
	})
	t.Run("when all is restored", func(t *testing.T) {
		_, _, r := dumped(t)
		_, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { return r.proxy.Close() })
		if err == nil {
			t.Error("Go succeeds without a connection")
		}
		r.neverRan()
	})
}

// children returns the processes whose parent is pid.
func children(t *testing.T, pid int) []int {
	t.Helper()
	lists, err := filepath.Glob("/proc/" + itoa(pid) + "/task/*/children")
	must(t, err)
	var all []int
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(data)) {
			n, err := strconv.Atoi(f)
			must(t, err)
			all = append(all, n)
		}
	}
	return all
}

// named finds the only child with this name.
func named(t *testing.T, pid int, name string) int {
	t.Helper()
	for _, child := range children(t, pid) {
		if p, err := kernel.ReadProcess(child); err == nil && p.Name == name {
			return child
		}
	}
	t.Fatalf("process %d has no child %s", pid, name)
	return 0
}

// TestKilled kills the proxy, and CRIU, before and during the restore, and checks that nothing ever runs.
func TestKilled(t *testing.T) {
	victims := map[string]func(t *testing.T, proxy int) int{
		"proxy": func(_ *testing.T, proxy int) int { return proxy },
		"CRIU":  func(t *testing.T, proxy int) int { return named(t, proxy, "criu") },
	}
	for name, victim := range victims {
		t.Run(name+" when all is restored", func(t *testing.T) {
			_, _, r := dumped(t)
			pid := victim(t, named(t, r.runc.Process.Pid, "criu"))
			_, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error {
				must(t, unix.Kill(pid, unix.SIGKILL))
				return nil
			})
			if err == nil {
				t.Error("Go succeeds")
			}
			// The proxy died just when it was told to continue: nobody can exclude that it did.
			if errors.Is(err, ErrUncertain) {
				<-r.done
				r.nothingRuns()
				return
			}
			r.neverRan()
		})
		t.Run(name+" before the images are there", func(t *testing.T) {
			_, _, r := dumped(t)
			must(t, unix.Kill(victim(t, named(t, r.runc.Process.Pid, "criu")), unix.SIGKILL))
			if _, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { return nil }); err == nil {
				t.Error("Go succeeds")
			}
			r.neverRan()
		})
	}
}

// TestRestoreFails damages an image, and checks that the error says why, and that a second proxy for the
// same record is possible.
func TestRestoreFails(t *testing.T) {
	c, _, r := dumped(t)
	must(t, os.Truncate(filepath.Join(c.images, "mm-1.img"), 10))
	_, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { return nil })
	if err == nil || !strings.Contains(err.Error(), "CRIU failed to restore") ||
		errors.Is(err, ErrUncertain) {
		t.Errorf("Go: %v, want that CRIU failed", err)
	}
	t.Log(err)
	r.neverRan()
}

// TestRestoreHangs makes CRIU hang in a failing restore: the processes cannot get one of their
// capabilities.
func TestRestoreHangs(t *testing.T) {
	c := newContainer(t, func(s *specs.Spec) {
		for _, set := range []*[]string{
			&s.Process.Capabilities.Bounding, &s.Process.Capabilities.Effective,
			&s.Process.Capabilities.Permitted,
		} {
			*set = append(slices.Clone(*set), "CAP_SYS_BOOT")
		}
	})
	client := c.dial()
	client.do("child")
	client.do("child")
	c.dump()
	c.killQuietly()
	c.under = []string{"setpriv", "--bounding-set=-sys_boot"}
	r := c.startRestore()
	must(t, r.proxy.WaitReady(deadline(t)))
	_, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { return nil })
	if err == nil || !strings.Contains(err.Error(), "restore capabilities") || errors.Is(err, ErrUncertain) {
		t.Errorf("Go: %v, want that CRIU cannot restore capabilities, and that nothing has run\n%s", err,
			r.logs())
	}
	r.neverRan()
}

// TestSecondProxy starts a restore whose record exists. The container ran before, so it must not run again.
func TestSecondProxy(t *testing.T) {
	c := newContainer(t)
	c.dump()
	c.killQuietly()
	must(t, os.WriteFile(filepath.Join(c.dir, "record"), nil, 0o600))
	r := c.startRestore()
	if err := r.proxy.WaitReady(deadline(t)); err == nil ||
		!strings.Contains(err.Error(), "was allowed to run before") {
		t.Errorf("WaitReady: %v, want that it ran before", err)
	}
	if err := <-r.done; err == nil {
		t.Error("runc restore succeeded")
	}
}

// TestRanEndsTheProxy queries the outcome of a restore whose proxy waits for an agent that does nothing.
func TestRanEndsTheProxy(t *testing.T) {
	_, _, r := dumped(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ran, err := Ran(ctx, r.record)
	must(t, err)
	if ran {
		t.Error("Ran says that it ran")
	}
	r.neverRan()
}

// TestOlderProxy checks that the network is opened even if the proxy does not report that it has made its
// record.
func TestOlderProxy(t *testing.T) {
	here, there := net.Pipe()
	g, err := ListenProxy(filepath.Join(t.TempDir(), "gate.sock"))
	must(t, err)
	t.Cleanup(func() { _ = g.Close() })
	g.conn = newProxyConn(here)
	older := newProxyConn(there)
	go func() {
		for _, kind := range []string{kindRestored, kindResumed} {
			_, _ = older.receive() // go, resume
			_ = older.send(proxyMessage{Kind: kind, PID: 7})
		}
	}()
	opened := 0
	options := ProxyOptions{Open: func() error { opened++; return nil }}
	resumed, err := g.Go(deadline(t), options, func() error { return nil })
	if err != nil || resumed.PID != 7 || opened != 1 {
		t.Errorf("resumed %+v, %v, opened %d times", resumed, err, opened)
	}
}
