package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// withPlaceholder returns a container that was dumped and killed, and whose restore has a placeholder.
func withPlaceholder(t *testing.T) (c *container, client *client, r *restore, pid int) {
	t.Helper()
	c = newContainer(t)
	client = c.dial()
	client.count()
	c.dump()
	c.killQuietly()
	r = c.startRestore(func(s *ProxySettings) { s.Placeholder = c.placeholder() })
	over := make(chan struct{})
	go func() {
		err := <-r.done
		close(over)
		r.done <- err
	}()
	pid, err := AwaitPlaceholder(c.placeholder(), over)
	if err != nil {
		t.Fatalf("%v\n%s", err, r.logs())
	}
	return c, client, r, pid
}

func (c *container) placeholder() string { return filepath.Join(c.dir, "forerunner.sock") }

// started requests the start; the channel reports the end of the restore.
func (r *restore) started() <-chan error {
	over := make(chan error, 1)
	go func() { over <- StartRestored(context.Background(), r.c.placeholder()) }()
	must(r.c.t, r.proxy.WaitReady(deadline(r.c.t)))
	return over
}

// TestPlaceholder checks that the engine finds a process in place of the first process, and that the
// restored process gets its PID.
func TestPlaceholder(t *testing.T) {
	c, client, r, pid := withPlaceholder(t)
	group, err := cgroup.Of(pid)
	must(t, err)
	if want, err := cgroup.Open(c.cgroupsPath); err != nil || group.FreezerDir() != want.FreezerDir() {
		t.Errorf("it is in cgroup %s, want %s (%v)", group.FreezerDir(), want.FreezerDir(), err)
	}
	own, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid))
	must(t, err)
	if want, err := os.Stat(c.netns); err != nil || !os.SameFile(own, want) {
		t.Errorf("its network is not the container's (%v)", err)
	}
	over := r.started()
	resumed, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { c.unplug(false); return nil })
	if err != nil {
		t.Fatalf("%v\n%s", err, r.logs())
	}
	must(t, <-over)
	must(t, <-r.done)
	if c.attach(); resumed.PID != pid || c.pid != pid {
		t.Errorf("the first process is %d, by runc %d, and was to be %d", resumed.PID, c.pid, pid)
	}
	client.count()
	if threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)); err != nil || len(threads) == 0 {
		t.Errorf("its threads: %v, %v", threads, err)
	}
}

// TestPlaceholderEnds checks that however a restore ends, whoever expects the first process among its
// children learns that it has ended.
func TestPlaceholderEnds(t *testing.T) {
	t.Run("before the start", func(t *testing.T) {
		_, _, r, pid := withPlaceholder(t)
		must(t, r.proxy.Close())
		r.neverRan()
		collect(t, pid)
	})
	t.Run("by the engine", func(t *testing.T) {
		c, _, r, pid := withPlaceholder(t)
		must(t, EndRestore(c.placeholder()))
		if err := r.proxy.WaitReady(deadline(t)); err == nil ||
			!strings.Contains(err.Error(), "the engine has ended") {
			t.Errorf("the agent is told %v", err)
		}
		r.neverRan()
		collect(t, pid)
	})
	t.Run("before the resume", func(t *testing.T) {
		_, _, r, pid := withPlaceholder(t)
		over := r.started()
		if _, err := r.proxy.Go(deadline(t), ProxyOptions{},
			func() error { return errors.New("no") }); err == nil {
			t.Error("it was resumed")
		}
		must(t, <-over)
		r.neverRan()
		collect(t, pid)
	})
	t.Run("without images", func(t *testing.T) {
		c, _, r, pid := withPlaceholder(t)
		over := r.started()
		c.emptyImages()
		if _, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { return nil }); err == nil {
			t.Error("it was resumed")
		}
		must(t, <-over)
		r.neverRan()
		collect(t, pid)
	})
	t.Run("killed", func(t *testing.T) {
		_, _, r, pid := withPlaceholder(t)
		proxy, err := kernel.ReadProcess(pid)
		must(t, err)
		must(t, unix.Kill(proxy.Parent, unix.SIGKILL))
		<-r.done
		collect(t, pid)
	})
}

// collect waits for the end of a process that has become a child of this one.
func collect(t *testing.T, pid int) {
	t.Helper()
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Errorf("process %d: %v", pid, err)
		}
		return
	}
}
