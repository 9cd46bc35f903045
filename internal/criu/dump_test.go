package criu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// TestAbort gives up a dump twenty times in a row, and checks that an established connection still works.
func TestAbort(t *testing.T) {
	c := newContainer(t)
	abortTwentyTimes(t, c)
}

// TestAbortVersion1 does the same with the freezer of cgroup version 1.
func TestAbortVersion1(t *testing.T) {
	c := newContainer(t)
	c.freezeByVersion1()
	abortTwentyTimes(t, c)
}

func abortTwentyTimes(t *testing.T, c *container) {
	client := c.dial()
	client.count()
	for range 20 {
		c.dump()
		if n := c.abort(); n != 1 {
			t.Fatalf("%d sockets were in repair mode, want the one established", n)
		}
		client.count()
		c.emptyImages()
	}
}

// freezeByVersion1 uses the v1 freezer: the container's group in it if runc has made one, otherwise (pure
// version 2) a group in a hierarchy mounted for the test.
func (c *container) freezeByVersion1() {
	c.t.Helper()
	dir := "/sys/fs/cgroup/freezer" + c.cgroupsPath
	if _, err := os.Stat(dir); err != nil {
		dir = c.mountFreezer()
	}
	group, err := cgroup.At(dir)
	must(c.t, err)
	runc := c.group
	c.group = group
	c.t.Cleanup(func() {
		must(c.t, group.Thaw()) // version 2 cannot kill what version 1 holds
		c.group = runc
	})
}

func (c *container) mountFreezer() string {
	c.t.Helper()
	mount := filepath.Join(c.dir, "freezer")
	must(c.t, os.Mkdir(mount, 0o700))
	must(c.t, unix.Mount("cgroup", mount, "cgroup", 0, "freezer"))
	dir := filepath.Join(mount, c.id)
	must(c.t, os.Mkdir(dir, 0o755))
	pids, err := c.group.Procs()
	must(c.t, err)
	for _, pid := range pids {
		must(c.t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(itoa(pid)), 0))
	}
	c.t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	return dir
}

// TestRollBack lets CRIU put everything back itself, in each way in which a dump ends early.
func TestRollBack(t *testing.T) {
	for name, lazy := range map[string]bool{"whole": false, "lazy": true} {
		t.Run(name, func(t *testing.T) { rollBack(t, lazy) })
	}
}

func rollBack(t *testing.T, lazy bool) {
	c := newContainer(t)
	c.lazy = lazy
	client := c.dial()
	refused := errors.New("cannot freeze")
	for name, f := range map[string]func(t *testing.T){
		"freezing again fails": func(t *testing.T) {
			d := c.startDump()
			must(t, d.Run(deadline(t), c.images))
			if err := d.Release(func() error { return refused }); !errors.Is(err, refused) {
				t.Errorf("Release: %v, want %v", err, refused)
			}
		},
		"closed while CRIU holds the processes": func(t *testing.T) {
			d := c.startDump()
			must(t, d.Run(deadline(t), c.images))
			must(t, d.Close())
		},
		"cancelled": func(t *testing.T) {
			d := c.startDump()
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := d.Run(ctx, c.images); !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v, want %v", err, context.Canceled)
			}
		},
		"cancelled at the end": func(t *testing.T) {
			d := c.startDump()
			ctx, cancel := context.WithCancel(context.Background())
			stop := c.whenDumping(cancel)
			defer stop()
			if err := d.Run(ctx, c.images); !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v, want %v", err, context.Canceled)
			}
		},
		"closed before the dump": func(t *testing.T) { must(t, c.startDump().Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			client.count()
			f(t)
			frozen, err := c.group.Frozen()
			must(t, err)
			if !frozen {
				t.Error("the container is not frozen as before the dump")
			}
			c.abort()
			client.count()
			c.emptyImages()
		})
	}
}

// whenDumping calls f when CRIU has begun to write the images of processes. CRIU sends no notification
// until it has finished.
func (c *container) whenDumping(f func()) (stop func()) {
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
			if _, err := os.Stat(filepath.Join(c.images, "pagemap-1.img")); err == nil {
				f()
				return
			}
		}
	}()
	return func() { close(over) }
}

// TestCRIUKilled kills CRIU while it holds the processes, and checks that Release notices, and that the
// connection can be repaired.
func TestCRIUKilled(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	client.count()
	d := c.startDump()
	must(t, d.Run(deadline(t), c.images))
	must(t, d.process.Process.Kill())
	await.True(t, "the end of CRIU", func() bool { return !d.alive() })
	if err := d.Release(c.refreeze); err == nil {
		t.Error("Release says that all is well")
	}
	if n := c.abort(); n != 1 {
		t.Errorf("%d sockets were in repair mode, want 1", n)
	}
	client.count()
}

// TestDumpFails checks the error of a dump that CRIU refuses, and that the container continues.
func TestDumpFails(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	client.do("socket-mptcp")
	err := c.startDump().Run(deadline(t), c.images)
	if err == nil || !strings.Contains(err.Error(), "Unsupported proto 262") ||
		strings.Contains(err.Error(), "RLIMIT") {
		t.Errorf("Run: %v, want that MPTCP is not supported, and nothing of limits", err)
	}
	must(t, c.group.Thaw())
	client.count()
}

// TestLinkRemap gives up a dump that made names for deleted files, and checks that they are removed, and
// that another file with such a name stays.
func TestLinkRemap(t *testing.T) {
	c := newContainer(t)
	c.dial().do("file-unlinked")
	data := filepath.Join(c.bundle, "rootfs/data")
	must(t, os.WriteFile(filepath.Join(data, "link_remap.9999"), nil, 0o600))
	c.dump()
	if n := len(matches(t, data)); n != 2 {
		t.Fatalf("%d names after the dump, want 2", n)
	}
	c.abort()
	if left := matches(t, data); len(left) != 1 || filepath.Base(left[0]) != "link_remap.9999" {
		t.Errorf("left: %v, want the container's own file", left)
	}
}

func matches(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "link_remap.*"))
	must(t, err)
	return names
}
