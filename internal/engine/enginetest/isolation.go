package enginetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// check runs a script to its end and compares its output.
func check(t *testing.T, n Node, script, want string, change ...func(*engine.Definition)) {
	t.Helper()
	d := run(t, n, script, change...)
	ended(t, n, d.ID)
	if got := output(t, n, d.ID, ""); got != want {
		t.Errorf("%s:\n got %q\nwant %q", script, got, want)
	}
	must(t, n.Remove(t.Context(), d.ID, false))
}

func testEnvironment(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	check(t, n, "echo $X $PWD $HOSTNAME; hostname; cat /etc/hostname", "a b /tmp berry\nberry\nberry\n",
		func(d *engine.Definition) {
			d.Env, d.Dir, d.Hostname = append(d.Env, "X=a b"), "/tmp", "berry"
		})
	check(t, n, "grep -c localhost /etc/hosts; ulimit -n; umask; cat /proc/self/oom_score_adj",
		"2\n1024\n0022\n0\n")
}

func testUsers(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	user := func(u string) func(*engine.Definition) { return func(d *engine.Definition) { d.User = u } }
	check(t, n, "id -u; id -g; id -G; echo $HOME", "0\n0\n0\n/root\n", user(""))
	check(t, n, "id -u; id -g; id -G; echo $HOME", "1001\n1002\n1002 50\n/home/ann\n", user("ann"))
	check(t, n, "id -u; id -g; id -G", "1001\n50\n50\n", user("ann:staff"))
	check(t, n, "id -u; id -g; echo $HOME", "4711\n0\n/\n", user("4711"))
	check(t, n, "id -u; id -g", "4711\n4712\n", user("4711:4712"))
	check(t, n, "grep CapEff /proc/self/status", "CapEff:\t0000000000000000\n", user("ann"))
	for _, bad := range []string{"nobody-of-this-name", "ann:no-group", "-1", "99999999999"} {
		if err := n.TryRun(t, define(t, n, "true", user(bad))); err == nil {
			t.Errorf("user %q is accepted", bad)
		}
	}
}

func testLimits(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	limits := func(l engine.Limits) func(*engine.Definition) {
		return func(d *engine.Definition) { d.Limits = l }
	}
	d := run(t, n, "sleep 60", limits(engine.Limits{MemoryBytes: 32 << 20, CPUs: 0.5, Pids: 12}))
	checkLimits(t, n, d.ID)
	hungry := run(t, n, "a=x; while :; do a=$a$a; done", limits(engine.Limits{MemoryBytes: 16 << 20}))
	if ctr := ended(t, n, hungry.ID); ctr.ExitCode != 137 {
		t.Errorf("one that took too much memory ended with %d", ctr.ExitCode)
	}
	for _, bad := range []engine.Limits{{MemoryBytes: 1}, {MemoryBytes: -1}, {CPUs: -1}, {CPUs: 0.001},
		{Pids: -1}} {
		if err := n.TryRun(t, define(t, n, "true", limits(bad))); err == nil {
			t.Errorf("limits %+v are accepted", bad)
		}
	}
}

// testThrottle throttles a container with a limit and one without, and ends the throttling.
func testThrottle(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	for own, quotas := range map[float64][2]string{ // cpu.max and cpu.cfs_quota_us
		0:   {"cpu.max max 100000", "cpu.cfs_quota_us -1"},
		0.5: {"cpu.max 50000 100000", "cpu.cfs_quota_us 50000"},
	} {
		d := run(t, n, "while :; do :; done", func(d *engine.Definition) { d.Limits.CPUs = own })
		pid := state(t, n, d.ID).PID
		wants := func(when string, alternatives []string) {
			t.Helper()
			if !limited(t, pid, "cpu", alternatives) {
				t.Errorf("with %g processors of its own, %s: the limit is not %q", own, when, alternatives)
			}
		}
		must(t, n.Throttle(t.Context(), d.ID, 0.1))
		wants("throttled", []string{"cpu.max 10000 100000", "cpu.cfs_quota_us 10000"})
		must(t, n.Throttle(t.Context(), d.ID, 4))
		if own > 0 {
			wants("throttled to more than it has", quotas[:])
		}
		must(t, n.Throttle(t.Context(), d.ID, 0))
		wants("not throttled any more", quotas[:])
		before, err := n.CPUTime(t.Context(), d.ID)
		must(t, err)
		eventually(t, "it uses processor time", func() bool {
			now, err := n.CPUTime(t.Context(), d.ID)
			return err == nil && now > before
		})
		must(t, n.Remove(t.Context(), d.ID, true))
		must(t, n.Throttle(t.Context(), d.ID, 0))
	}
}

// checkLimits compares the limits in the kernel with those of testLimits.
func checkLimits(t *testing.T, n Node, id string) {
	t.Helper()
	pid := state(t, n, id).PID
	wanted := map[string][]string{ // version 2, version 1
		"memory": {"memory.max 33554432", "memory.limit_in_bytes 33554432"},
		"cpu":    {"cpu.max 50000 100000", "cpu.cfs_quota_us 50000"},
		"pids":   {"pids.max 12", "pids.max 12"},
	}
	for controller, alternatives := range wanted {
		if !limited(t, pid, controller, alternatives) {
			t.Errorf("limit of %s is not set", controller)
		}
	}
}

// limited looks for one of several settings in the cgroups of a process.
func limited(t *testing.T, pid int, controller string, alternatives []string) bool {
	t.Helper()
	for _, dir := range cgroupDirs(t, pid, controller) {
		for _, setting := range alternatives {
			name, value, _ := strings.Cut(setting, " ")
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err == nil && strings.TrimSpace(string(data)) == value {
				return true
			}
		}
	}
	return false
}

// cgroupDirs returns the possible directories of a controller's files for a process.
func cgroupDirs(t *testing.T, pid int, controller string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "cgroup"))
	must(t, err)
	var dirs []string
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == controller:
			dirs = append(dirs, filepath.Join("/sys/fs/cgroup", controller, parts[2]))
		case parts[1] == "":
			dirs = append(dirs, filepath.Join("/sys/fs/cgroup", parts[2]),
				filepath.Join("/sys/fs/cgroup/unified", parts[2]))
		}
	}
	return dirs
}

func testIsolation(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	d := run(t, n, "sleep 60")
	pid := state(t, n, d.ID).PID
	for _, kind := range []string{"pid", "ipc", "uts", "mnt", "net"} {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		must(t, err)
		its, err := os.Readlink("/proc/" + itoa(pid) + "/ns/" + kind)
		must(t, err)
		if own == its {
			t.Errorf("it shares the node's %s namespace", kind)
		}
	}
	questions := map[string]string{
		"echo $$ | grep -v '^1$' >/dev/null; ps | grep -c '[s]leep 60'": "1\n",
		"grep Seccomp: /proc/self/status":                               "Seccomp:\t2\n",
		"grep CapBnd /proc/self/status":                                 "CapBnd:\t00000000a80425fb\n",
		"cat /proc/kcore 2>/dev/null | head -c1 | wc -c":                "0\n",
		"ls /sys/firmware | wc -l":                                      "0\n",
		"echo 1 2>&- >/proc/sys/kernel/panic || echo read-only":         "read-only\n",
		"touch /sys/x 2>&- || echo read-only":                           "read-only\n",
		"touch /dev/shm/x && echo a > /dev/null && echo fine":           "fine\n",
		"mount -t tmpfs x /tmp 2>&- || echo forbidden":                  "forbidden\n",
		"mknod /tmp/disk b 7 0 && cat /tmp/disk 2>&- || echo forbidden": "forbidden\n",
		"ls /proc/self/fd | wc -l":                                      "4\n",
	}
	for script, want := range questions {
		if got, _ := execute(t, n, d.ID, script); !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
}

func testReadOnly(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	script := "touch /x 2>/dev/null || echo read-only; echo a >/dev/shm/x && echo a >/data/x && touch " +
		"/dev/x && echo fine"
	check(t, n, script, "read-only\nfine\n", func(d *engine.Definition) {
		d.ReadOnly, d.Volumes = true, []engine.Volume{{Name: "data", Path: "/data"}}
	})
}

func testVolumes(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	volume := func(v ...engine.Volume) func(*engine.Definition) {
		return func(d *engine.Definition) { d.Volumes = v }
	}
	check(t, n, "echo kept >/a/file; echo deep >/a/b/file", "",
		volume(engine.Volume{Name: "inner", Path: "/a/b"}, engine.Volume{Name: "outer", Path: "/a"}))
	check(t, n, "cat /v/file /w/file; touch /v/x 2>/dev/null || echo read-only", "kept\ndeep\nread-only\n",
		volume(engine.Volume{Name: "outer", Path: "/v", ReadOnly: true},
			engine.Volume{Name: "inner", Path: "/w"}))
	for _, bad := range []engine.Volume{{Name: "../x", Path: "/v"}, {Name: "x", Path: "v"},
		{Name: "x", Path: "/"}, {Name: "x", Path: "/a/../b"}, {Path: "/v"}} {
		if err := n.TryRun(t, define(t, n, "true", volume(bad))); err == nil {
			t.Errorf("volume %+v is accepted", bad)
		}
	}
}

func testTerminal(t *testing.T, f Fixture) {
	n := f.NewNode(t)
	check(t, n, "tty; echo $TERM; echo oops >&2", "/dev/pts/0\r\nxterm\r\noops\r\n",
		func(d *engine.Definition) { d.TTY = true })
}
