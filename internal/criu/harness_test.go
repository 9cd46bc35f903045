package criu

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/cgroup"
)

var workload string // path of the program that runs in the containers

// envPrivate tells the tests that they are in a mount namespace of their own.
const envPrivate = "GODWIT_TEST_PRIVATE"

// TestMain also acts as the proxy: tests start runc with a link called criu to this program. The tests run
// in a mount namespace of their own with a tmpfs on /run. CRIU keeps its cache of kernel facts there, and
// only on a tmpfs. Network namespaces that a crash leaves behind vanish with it.
func TestMain(m *testing.M) {
	switch {
	case filepath.Base(os.Args[0]) == "criu":
		os.Exit(ProxyMain(os.Args))
	case os.Getenv(envPrivate) == "":
		os.Exit(inPrivateNamespace())
	default:
		os.Exit(runTests(m))
	}
}

func inPrivateNamespace() int {
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), envPrivate+"=1")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if err := c.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "godwit-criu-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the tests:", err)
		return 1
	}
	return m.Run()
}

func prepare(dir string) error {
	// Orphans become children of this process, as a container's orphans become children of its monitor.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	workload = filepath.Join(dir, "workload")
	for path, architecture := range map[string]string{workload: runtime.GOARCH, workload + "32": "386"} {
		build := exec.Command("go", "build", "-o", path, "./testdata/workload")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+architecture)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build the workload: %w\n%s", err, out)
		}
	}
	_, err := Find() // fills CRIU's cache
	return err
}

// container is a runc container in a network namespace, with a client's namespace at the other end
// of a veth pair.
type container struct {
	t                  testing.TB
	id, dir, bundle    string
	netns, clientNetns string
	subnet             string // the container is .1, the client .2
	cgroupsPath        string
	spec               *specs.Spec
	pid                int
	group              *cgroup.Cgroup
	images             string   // tmpfs
	lazy               bool     // dumps leave memory out, and do not examine large mappings
	under              []string // a program that starts runc for a restore, and its arguments
}

var containers atomic.Int64

func newContainer(t testing.TB, change ...func(*specs.Spec)) *container {
	t.Helper()
	return newContainerWith(t, nil, change...)
}

// newContainerWith gives the container a standard output; nil is /dev/null.
func newContainerWith(t testing.TB, stdout *os.File, change ...func(*specs.Spec)) *container {
	t.Helper()
	n := containers.Add(1)
	c := &container{t: t, id: fmt.Sprintf("gwt%d-%d", os.Getpid(), n), dir: t.TempDir()}
	c.netns, c.clientNetns = "/run/netns/"+c.id, "/run/netns/"+c.id+"c"
	c.bundle = filepath.Join(c.dir, "bundle")
	c.images = filepath.Join(c.dir, "images")
	c.cgroupsPath = "/godwit-test/" + c.id
	c.subnet = fmt.Sprintf("10.99.%d", n%250)
	t.Cleanup(func() { // one for each proxy
		for unix.Unmount(filepath.Join(c.dir, "masked"), unix.MNT_DETACH) == nil {
		}
	})
	t.Cleanup(c.cleanUp)
	c.network()
	must(t, os.MkdirAll(c.images, 0o700))
	must(t, unix.Mount("tmpfs", c.images, "tmpfs", 0, "mode=700"))
	c.makeBundle(change)
	command(t, "ip", "netns", "exec", c.id, "sysctl", "-qw", "net.ipv4.ping_group_range=0 1000")
	c.runcWith(stdout, "run", "--detach", "--bundle", c.bundle, "--pid-file", filepath.Join(c.dir, "pid"),
		c.id)
	c.attach()
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c *container) network() {
	for _, args := range [][]string{
		{"netns", "add", c.id}, {"netns", "add", c.id + "c"},
		{"-n", c.id, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", c.id + "c"},
		{"-n", c.id, "link", "set", "lo", "up"}, {"-n", c.id, "link", "set", "eth0", "up"},
		{"-n", c.id + "c", "link", "set", "lo", "up"}, {"-n", c.id + "c", "link", "set", "eth0", "up"},
		{"-n", c.id, "addr", "add", c.subnet + ".1/24", "dev", "eth0"},
		{"-n", c.id + "c", "addr", "add", c.subnet + ".2/24", "dev", "eth0"},
	} {
		command(c.t, "ip", args...)
	}
}

// neighbour returns an unused address in the container's network.
func (c *container) neighbour() string { return c.subnet + ".77" }

func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (c *container) cleanUp() {
	_ = exec.Command(runcPath(), "--root", c.root(), "delete", "--force", c.id).Run()
	if c.group != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := c.group.Kill(ctx); err != nil {
			c.t.Error(err)
		}
		_ = c.group.Thaw()
		if err := c.group.Remove(); err != nil {
			c.t.Error(err)
		}
	}
	_ = unix.Unmount(c.images, unix.MNT_DETACH)
	_ = exec.Command("ip", "netns", "del", c.id).Run()
	_ = exec.Command("ip", "netns", "del", c.id+"c").Run()
}

func (c *container) root() string { return filepath.Join(c.dir, "runc") }

func runcPath() string {
	if _, err := os.Stat("/opt/godwit/bin/runc"); err == nil {
		return "/opt/godwit/bin/runc"
	}
	return "runc"
}

// runc runs runc with standard streams of /dev/null, which the container inherits.
func (c *container) runc(args ...string) {
	c.t.Helper()
	c.runcWith(nil, args...)
}

func (c *container) runcWith(stdout *os.File, args ...string) {
	c.t.Helper()
	log := filepath.Join(c.dir, "runc.log")
	cmd := exec.Command(runcPath(), append([]string{"--root", c.root(), "--log", log}, args...)...)
	if stdout != nil {
		cmd.Stdout = stdout
	}
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log)
		c.t.Fatalf("runc %s: %v\n%s", strings.Join(args, " "), err, text)
	}
}

// attach finds the container's first process and cgroup.
func (c *container) attach() {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join(c.dir, "pid"))
	must(c.t, err)
	_, err = fmt.Sscan(string(data), &c.pid)
	must(c.t, err)
	c.group, err = cgroup.Of(c.pid)
	must(c.t, err)
}

func (c *container) makeBundle(change []func(*specs.Spec)) {
	rootfs := filepath.Join(c.bundle, "rootfs")
	for _, d := range []string{"bin", "proc", "sys", "dev", "tmp", "data"} {
		must(c.t, os.MkdirAll(filepath.Join(rootfs, d), 0o755))
	}
	command(c.t, "cp", workload, workload+"32", filepath.Join(rootfs, "bin"))
	c.spec = testSpec(c.netns, c.cgroupsPath)
	for _, f := range change {
		f(c.spec)
	}
	data, err := json.Marshal(c.spec)
	must(c.t, err)
	must(c.t, os.WriteFile(filepath.Join(c.bundle, "config.json"), data, 0o600))
}

func testSpec(netns, cgroupsPath string) *specs.Spec {
	caps := []string{"CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_SETUID",
		"CAP_SETGID", "CAP_NET_RAW"}
	return &specs.Spec{
		Version:  "1.0.2",
		Hostname: "test",
		Root:     &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: []string{"/bin/workload"}, Cwd: "/", Env: []string{"PATH=/bin"}, NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc",
				Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
				Options: []string{"nosuid", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
				Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue",
				Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs",
				Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
				Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: cgroupsPath,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace}, {Type: specs.NetworkNamespace, Path: netns},
			},
			MaskedPaths: []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi",
				"/sys/firmware"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}

func (c *container) request() DumpRequest {
	c.t.Helper()
	e, err := ExternalFor(c.spec, filepath.Join(c.bundle, "rootfs"), c.pid)
	must(c.t, err)
	pids, err := c.group.Procs()
	must(c.t, err)
	network, err := NetworkFor(c.spec, pids)
	must(c.t, err)
	return DumpRequest{
		RootPID: c.pid, Root: filepath.Join(c.bundle, "rootfs"), WorkDir: c.dir,
		FreezeCgroup:   c.group.FreezerDir(),
		ExternalMounts: e.Mounts, External: e.External, Network: network,
	}
}

func findTool(t testing.TB) Tool {
	t.Helper()
	tool, err := Find()
	must(t, err)
	return tool
}

// emptyImages recreates the images directory.
func (c *container) emptyImages() {
	entries, err := os.ReadDir(c.images)
	must(c.t, err)
	for _, e := range entries {
		must(c.t, os.RemoveAll(filepath.Join(c.images, e.Name())))
	}
}

// startDump freezes the container, with a CRIU ready to dump it.
func (c *container) startDump() *Dump {
	c.t.Helper()
	request := c.request()
	if c.lazy {
		request = c.largeRequest()
	}
	d, err := findTool(c.t).StartDump(deadline(c.t), request)
	must(c.t, err)
	c.t.Cleanup(func() { _ = d.Close() })
	must(c.t, c.refreeze())
	return d
}

// dump freezes and dumps the container, which stays frozen. It returns the durations of Run and of Release.
func (c *container) dump() (run, release time.Duration) {
	c.t.Helper()
	d := c.startDump()
	start := time.Now()
	if err := d.Run(deadline(c.t), c.images); err != nil {
		log, _ := os.ReadFile(filepath.Join(c.dir, "dump.log"))
		c.t.Fatalf("%v\n%s", err, bytes.TrimSpace(log))
	}
	run = time.Since(start)
	start = time.Now()
	must(c.t, d.Release(c.refreeze))
	must(c.t, WriteDescriptors(c.images, []string{"/dev/null", "/dev/null", "/dev/null"}))
	return run, time.Since(start)
}

func (c *container) refreeze() error {
	_, err := c.group.Freeze(context.Background())
	return err
}

// abort resumes the container after a dump.
func (c *container) abort() (repaired int) {
	c.t.Helper()
	pids, err := c.group.Procs()
	must(c.t, err)
	repaired, err = Unrepair(pids)
	must(c.t, err)
	_, err = RemoveLinkRemaps(pids)
	must(c.t, err)
	must(c.t, c.group.Thaw())
	return repaired
}

func itoa(n int) string { return strconv.Itoa(n) }
