package criu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// restore is `runc restore` waiting in the proxy.
type restore struct {
	c      *container
	proxy  *Proxy
	record string
	runc   *exec.Cmd
	done   chan error
}

// kill ends the container and removes runc's state of it, so that it can be restored.
func (c *container) kill() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	must(c.t, c.group.Kill(ctx))
	must(c.t, c.group.Thaw())
	c.runc("delete", "--force", c.id)
}

func (c *container) startRestore(change ...func(*ProxySettings)) *restore {
	c.t.Helper()
	bin := filepath.Join(c.dir, "bin")
	must(c.t, os.MkdirAll(bin, 0o755))
	link := filepath.Join(bin, "criu")
	if _, err := os.Lstat(link); err != nil {
		self, err := os.Executable()
		must(c.t, err)
		must(c.t, os.Symlink(self, link))
	}
	r := &restore{c: c, record: filepath.Join(c.dir, "record"), done: make(chan error, 1)}
	var err error
	r.proxy, err = ListenProxy(filepath.Join(c.dir, "gate.sock"))
	must(c.t, err)
	c.t.Cleanup(func() { _ = r.proxy.Close() })
	work := filepath.Join(c.dir, "work")
	args := append(slices.Clone(c.under), runcPath(), "--root", c.root(), "--log",
		filepath.Join(c.dir, "runc.log"), "restore", "--detach",
		"--bundle", c.bundle, "--image-path", c.images, "--work-path", work, "--pid-file",
		filepath.Join(c.dir, "pid"), c.id)
	r.runc = exec.Command(args[0], args[1:]...)
	settings := ProxySettings{Socket: filepath.Join(c.dir, "gate.sock"), Record: r.record,
		Tool: findTool(c.t), CgroupNamespace: true}
	for _, f := range change {
		f(&settings)
	}
	r.runc.Env = append(os.Environ(), ProxyEnv(settings)...)
	r.runc.Env = append(r.runc.Env, "PATH="+bin+":"+os.Getenv("PATH"))
	must(c.t, r.runc.Start())
	go func() { r.done <- r.runc.Wait() }()
	return r
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func (r *restore) logs() string {
	var all string
	for _, f := range []string{"runc.log", "work/restore.log"} {
		data, _ := os.ReadFile(filepath.Join(r.c.dir, f))
		all += fmt.Sprintf("--- %s\n%s", f, data)
	}
	return all
}

// TestRestore moves a container five times, and checks that its client's connection continues.
func TestRestore(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	client.count()
	for range 5 {
		c.move(t)
		client.count()
	}
}

// TestRestoreWaiting moves a connection of unix sockets that is accepted only afterwards. CRIU dumps its
// client first, as it does if the client is a parent of the server.
func TestRestoreWaiting(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	client.do("unix-waiting")
	c.move(t)
	client.undo()
	client.count()
}

// BenchmarkSwitchover measures what happens between freeze and resume: the dump, its release, and the
// restore from the agent's message to go until the processes run.
func BenchmarkSwitchover(b *testing.B) {
	c := newContainer(b)
	client := c.dial()
	client.count()
	var dump, release, restore []time.Duration
	for b.Loop() {
		run, let := c.dump()
		c.killQuietly()
		r := c.startRestore()
		must(b, r.proxy.WaitReady(deadline(b)))
		start := time.Now()
		resumed, err := r.proxy.Go(deadline(b), ProxyOptions{}, func() error { return nil })
		must(b, err)
		dump, release, restore = append(dump, run), append(release, let),
			append(restore, resumed.At.Sub(start))
		must(b, <-r.done)
		must(b, os.Remove(r.record))
		c.attach()
		c.unplug(false)
		client.count()
		c.emptyImages()
	}
	for name, samples := range map[string][]time.Duration{"dump": dump, "release": release,
		"restore": restore} {
		slices.Sort(samples)
		b.ReportMetric(samples[len(samples)/2].Seconds()*1e3, name+"-median-ms")
		b.ReportMetric(samples[0].Seconds()*1e3, name+"-least-ms")
	}
}

// killQuietly kills the frozen container without its sockets sending anything to the peer, as an agent does
// that holds packets.
func (c *container) killQuietly() {
	c.unplug(true)
	c.kill()
}

// unplug takes the link in the container's namespace down or up.
func (c *container) unplug(down bool) {
	c.t.Helper()
	rule := []string{"netns", "exec", c.id, "nft"}
	if down {
		command(c.t, "ip", append(rule, "add table ip hold; add chain ip hold out { type filter hook "+
			"output priority 0; policy drop; }")...)
		return
	}
	command(c.t, "ip", append(rule, "delete table ip hold")...)
}
