package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// lxcPlace gives the nodes separate directories for LXC's containers: the machine's are not for tests.
var lxcPlace = sync.OnceValue(func() (err error) {
	for _, node := range nodes() {
		err = errors.Join(err, world.lab.Engines().PrepareLXC(context.Background(), node))
	}
	return err
})

// inNode runs a command of the machine in a node, and wants it to succeed.
func inNode(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := command(t.Context(), node, "", args...)
	if err != nil || out.code != 0 {
		t.Fatalf("on %s, %v: %v, exit code %d: %s", node, args, err, out.code, out.stderr)
	}
	return strings.TrimSpace(out.stdout)
}

// startLXC makes a container on node a with LXC's own tools: a system container with busybox's init, and a
// workload as its service.
func startLXC(t *testing.T, name, address, workload string) *container {
	t.Helper()
	if err := lxcPlace(); err != nil {
		t.Fatal(err)
	}
	inittab := "::sysinit:/bin/true\n::once:/bin/state " + workload + "\n"
	directory, err := world.lab.Engines().CreateLXC(t.Context(), "a", name, address, inittab,
		"lxc.cgroup.memory.limit_in_bytes = 256M")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(inWorld("state"))
	err = errors.Join(err, os.WriteFile(filepath.Join(directory, "rootfs/bin/state"), program, 0o755),
		os.MkdirAll(filepath.Join(directory, "rootfs/run"), 0o755)) // the workload listens there
	if err != nil {
		t.Fatal(err)
	}
	inNode(t, "a", "lxc-start", "-n", name)
	c := &container{t: t, name: "lxc:" + name, node: "a"}
	t.Cleanup(c.remove)
	c.eventually("the workload to be ready", func() bool {
		out, err := godwit(t.Context(), "a", "exec", c.name, "/bin/state", "ask", "check")
		return err == nil && out.code == 0
	})
	c.id = c.inspect().Definition.ID
	return c
}

// ownedByLXC checks that LXC's own tools have the container, unchanged, and that those of the other node do
// not.
func (c *container) ownedByLXC(name string) {
	c.t.Helper()
	c.eventually("LXC's list with "+name, func() bool { // its autostart settings come last
		got := inNode(c.t, c.node, "lxc-ls", "-f", "-F", "NAME,STATE,AUTOSTART")
		return strings.Join(strings.Fields(got), " ") == "NAME STATE AUTOSTART "+name+" RUNNING 1"
	})
	if pid := inNode(c.t, c.node, "lxc-info", "-n", name, "-pH"); pid == "" || pid == "-1" {
		c.t.Errorf("LXC's first process on %s: %q", c.node, pid)
	}
	if got := inNode(c.t, c.node, "lxc-cgroup", "-n", name,
		"memory.limit_in_bytes"); got != strconv.Itoa(256<<20) {
		c.t.Errorf("memory limit on %s: %s", c.node, got)
	}
	if got := inNode(c.t, c.other(), "lxc-ls"); got != "" {
		c.t.Errorf("LXC's list on %s: %q", c.other(), got)
	}
}

// TestLXC moves a container of LXC back and forth in all modes, with connections; then LXC stops and starts
// it.
func TestLXC(t *testing.T) {
	c := startLXC(t, "one", "10.88.1.200", "tcp")
	p, q := c.dial("client", "from-client"), c.accept("client", "to-client")
	for i, mode := range []string{preCopy, cold, postCopy, hybrid} {
		for _, one := range []*peer{p, q} {
			one.write(1000)
		}
		c.migrateBy(mode)
		c.ownedByLXC("one")
		for _, one := range []*peer{p, q} {
			c.ok(fmt.Sprintf("drain %[1]s %[2]d;send %[1]s %[2]d", one.name, 1000*(i+1)))
			one.read(uint64(1000*(i+1)) - one.received)
		}
	}
	inNode(t, c.node, "lxc-stop", "-n", "one", "-t", "2")
	c.eventually("the end of the container", func() bool { return c.inspect().State == "exited" })
	inNode(t, c.node, "lxc-start", "-n", "one")
	c.eventually("its new workload", func() bool { return c.exec("/bin/state", "ask", "check").code == 0 })
	c.migrateBy(preCopy)
	c.ok("check")
}

// TestLXCRefused: features that LXC's own restore cannot take over are refused with their names, before
// anything moves.
func TestLXCRefused(t *testing.T) {
	if err := lxcPlace(); err != nil {
		t.Fatal(err)
	}
	c := startLXC(t, "refused", "10.88.1.220", "tree")
	root, _, err := place("a")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "var/lib/lxc/refused/config")
	config, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, append(config, "lxc.mount.entry = /home home none bind 0 0\nlxc.tty.max "+
			"= 2\n"...), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.refused("lxc.mount.entry = /home home none bind 0 0", "lxc.tty.max = 2")
}
