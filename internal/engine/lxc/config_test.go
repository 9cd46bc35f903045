package lxc

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// busybox is the configuration that lxc-create -t busybox writes, for a container that can move.
const busybox = `# Template used to create this container: /usr/share/lxc/templates/lxc-busybox
lxc.net.0.type = veth
lxc.net.0.veth.mode = router
lxc.net.0.flags = up
lxc.net.0.ipv4.address = 10.88.1.200/32
lxc.net.0.ipv4.gateway = 169.254.1.1
lxc.rootfs.path = dir:/var/lib/lxc/one/rootfs
lxc.signal.halt = SIGUSR1
lxc.uts.name = "one"
lxc.tty.max = 0
lxc.cap.drop = sys_module mac_admin
lxc.mount.auto = cgroup:mixed proc:mixed sys:ro
lxc.mount.entry = shm dev/shm tmpfs defaults,create=dir 0 0
lxc.mount.entry = /usr/lib usr/lib none ro,bind 0 0
lxc.mount.entry = /sys/kernel/security sys/kernel/security none ro,bind,optional 0 0
lxc.start.auto = 1
lxc.cgroup.memory.limit_in_bytes = 64M
lxc.console.path = none
`

func parsed(t *testing.T, text string) []setting {
	t.Helper()
	settings, err := parseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	return settings
}

func TestMovableConfig(t *testing.T) {
	settings := parsed(t, busybox)
	if problems := checkSettings(settings, settings); len(problems) > 0 {
		t.Errorf("problems: %+v", problems)
	}
	if network, err := networkOf(settings); err != nil || network.Address.String() != "10.88.1.200" {
		t.Errorf("network: %+v, %v", network, err)
	}
	if last(settings, "lxc.uts.name") != "one" || memoryLimit(settings) != 64<<20 {
		t.Errorf("name %q, memory %d", last(settings, "lxc.uts.name"), memoryLimit(settings))
	}
}

// TestNotMovable: each of these lines is refused, and named.
func TestNotMovable(t *testing.T) {
	for _, line := range []string{
		"lxc.console.path = /dev/tty9", "lxc.tty.max = 4", "lxc.hook.pre-start = /root/x",
		"lxc.hook.destroy = /root/x",
		"lxc.mount.entry = /home home none bind 0 0", "lxc.mount.entry = /home home none ro,bind 0 0",
		"lxc.mount.entry = proc ../../proc proc rw 0 0", "lxc.mount.entry = proc /proc proc rw 0 0",
		"lxc.mount.entry = /home home tmpfs rw,bind 0 0", "lxc.mount.entry = /usr/lib usr/lib none bind 0 0",
		"lxc.rootfs.options = ro", "lxc.mount.entry = x", "lxc.mount.fstab = /etc/fstab",
		"lxc.rootfs.path = overlay:/a:/b", "lxc.idmap = u 0 100000 65536", "lxc.net.1.type = veth",
		"lxc.net.0.type = phys",
		"lxc.net.0.veth.mode = bridge", "lxc.net.0.script.up = /root/x",
		"lxc.net.0.ipv4.address = 10.0.3.5/24",
		"lxc.net.0.name = wan0", "lxc.namespace.share.net = 1", "lxc.seccomp.profile = /root/profile",
		"lxc.ephemeral = 1",
		"lxc.monitor.unshare = 1", "lxc.cgroup2.cgroup.procs = 1", "lxc.cgroup.cgroup.procs = 1",
		"lxc.cgroup.tasks = 1",
		"lxc.cgroup2.cgroup.freeze = 1", "lxc.cgroup.notify_on_release = 1",
		"lxc.cgroup.release_agent = /root/x",
		"lxc.cgroup.memory = 1", "lxc.cgroup.freezer.state = FROZEN",
		"lxc.mount.entry = /usr/lib usr/lib none ro,rw,bind 0 0",
		"lxc.mount.entry = /usr/lib usr/lib none rbind,ro 0 0",
		"lxc.mount.entry = /usr/lib usr/lib none bind,rbind,ro 0 0",
		"lxc.mount.entry = /usr/lib usr/lib none remount,ro,bind 0 0",
		"lxc.mount.entry = proc proc proc remount,rw 0 0",
		"lxc.mount.entry = /usr/lib usr/lib none ro,bind,relative 0 0", "lxc.log.file = /etc/passwd",
		"lxc.console.logfile = /etc/passwd", "nonsense = 1",
	} {
		settings := parsed(t, busybox+line+"\n")
		if problems := checkSettings(settings, settings); len(problems) != 1 {
			t.Errorf("%s: %+v", line, problems)
		}
	}
}

// TestNoRoot: a configuration with which LXC would show the container the node's files is refused.
func TestNoRoot(t *testing.T) {
	settings := parsed(t, strings.Replace(busybox, "lxc.rootfs.path", "# lxc.rootfs.path", 1))
	if problems := checkSettings(settings, settings); len(problems) != 1 ||
		!strings.Contains(problems[0].What, "lxc.rootfs.path") {
		t.Errorf("problems: %+v", problems)
	}
}

// TestDevices: limits of devices are refused where nothing sets them.
func TestDevices(t *testing.T) {
	v1, v2 := setting{"lxc.cgroup.devices.deny", "a"}, setting{"lxc.cgroup2.devices.deny", "a"}
	for _, one := range []struct {
		settings []setting
		hasV1    bool
		refused  bool
	}{
		{nil, false, false}, {[]setting{v1, v2}, true, false}, {[]setting{v1}, true, false},
		{[]setting{v1, v2}, false, true}, {[]setting{v2}, true, true}, {[]setting{v1}, false, true},
	} {
		if problems := devicesProblem(one.settings, one.hasV1); len(problems) > 0 != one.refused {
			t.Errorf("%+v: %+v", one, problems)
		}
	}
}

// TestCgroupVersions: settings with which this version of LXC would not start the container are refused.
func TestCgroupVersions(t *testing.T) {
	v1, v2 := setting{"lxc.cgroup.pids.max", "7"}, setting{"lxc.cgroup2.pids.max", "7"}
	devices := []setting{{"lxc.cgroup2.devices.deny", "a"}, {"lxc.cgroup.devices.deny", "a"}}
	for _, one := range []struct {
		version  string
		settings []setting
		refused  string
	}{
		{"5.0.2", []setting{v1, v2}, ""}, {"6.0.4", []setting{v1, v2}, ""}, {"5.0.2", devices, ""},
		{"7.0.0", nil, ""},
		{"7.0.0", []setting{v2}, ""}, {"7.0.0", []setting{v2, v1}, "lxc.cgroup.pids.max = 7"},
		{"7", []setting{v1}, "lxc.cgroup.pids.max = 7"},
		{"7.0.0", devices, "lxc.cgroup.devices.deny = a"}, {"7.1.0", devices[:1], "limits of devices"},
	} {
		var refused strings.Builder
		for _, problem := range cgroupProblems(one.settings, one.version, true) {
			refused.WriteString(problem.What)
		}
		if !strings.Contains(refused.String(), one.refused) || one.refused == "" && refused.Len() > 0 {
			t.Errorf("%+v: refused is %q", one, refused.String())
		}
	}
}

// TestLimit: only files of controllers are written.
func TestLimit(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"freezer.state", "cgroup.procs", "pids.max", "pids.other"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	group, err := cgroup.At(dir)
	if err != nil {
		t.Fatal(err)
	}
	settings := []setting{{"lxc.cgroup.pids.max", "7"}, {"lxc.cgroup2.pids.other", "8"},
		{"lxc.cgroup.cgroup.procs", "1"}}
	if err := limit(settings, group); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"pids.max": "7", "pids.other": "", "cgroup.procs": ""} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestIncludes(t *testing.T) {
	all, err := expand(parsed(t, "lxc.include = /usr/share/lxc/config/common.conf\n"+busybox))
	if err != nil || len(all) <= len(parsed(t, busybox))+5 {
		t.Errorf("%d settings, %v", len(all), err)
	}
	for _, path := range []string{"/etc/passwd", "/usr/share/lxc/config/../../../../etc/passwd",
		"/usr/share/lxc/configuration"} {
		if _, err := expand([]setting{{"lxc.include", path}}); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}

// TestGuarded: a guarded configuration never starts, and the other one is unchanged.
func TestGuarded(t *testing.T) {
	guarded := parsed(t, render(parsed(t, busybox), "/elsewhere/rootfs", true))
	if last(guarded, "lxc.start.auto") != "0" || last(guarded, "lxc.hook.pre-start") != "/bin/false" {
		t.Errorf("guarded: %+v", guarded)
	}
	own := parsed(t, render(parsed(t, busybox), "/elsewhere/rootfs", false))
	if last(own, "lxc.start.auto") != "1" || last(own, "lxc.rootfs.path") != "dir:/elsewhere/rootfs" ||
		len(own) != len(parsed(t, busybox)) {
		t.Errorf("own: %+v", own)
	}
}

func definition(config string) engine.Definition {
	d := engine.Definition{EngineName: Name, ID: strings.Repeat("ab", 32), Name: "one",
		Engine: encodeExtra(extra{Config: config})}
	if settings, err := parseConfig(config); err == nil {
		describe(&d, settings)
	}
	return d
}

func TestValidate(t *testing.T) {
	if _, _, err := validate(definition(busybox)); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*engine.Definition){
		"id":      func(d *engine.Definition) { d.ID = "../x" },
		"name":    func(d *engine.Definition) { d.Name = "../x" },
		"engine":  func(d *engine.Definition) { d.EngineName = "" },
		"volumes": func(d *engine.Definition) { d.Volumes = []engine.Volume{{Name: "v"}} },
		"address": func(d *engine.Definition) { d.Network.Address = d.Network.Address.Next() },
		"config":  func(d *engine.Definition) { d.Engine = encodeExtra(extra{Config: "x"}) },
		"json":    func(d *engine.Definition) { d.Engine = json.RawMessage(`[]`) },
	} {
		d := definition(busybox)
		change(&d)
		if _, _, err := validate(d); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// FuzzConfig: no configuration of a peer makes LXC run a program of this node, or show it directories that
// are not for all.
func FuzzConfig(f *testing.F) {
	f.Add(busybox)
	f.Add("lxc.hook.pre-start=/x\n")
	f.Add(busybox + "lxc.mount.entry = /usr/lib usr/lib none ro,rw,bind 0 0\n")
	f.Add("lxc.mount.entry = / x none ro,bind 0 0\nlxc.include = /usr/share/lxc/config/../../../x\n")
	f.Fuzz(func(t *testing.T, text string) {
		written, all, err := validate(definition(text))
		if err != nil || len(checkSettings(written, all)) > 0 {
			return
		}
		again, err := parseConfig(render(written, "/var/lib/lxc/one/rootfs", false))
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range again {
			switch {
			case strings.Contains(one.key, "hook") || strings.Contains(one.key, "script"):
				t.Errorf("runs %s = %s", one.key, one.value)
			case one.key == "lxc.mount.entry" && leaks(one.value):
				t.Errorf("mounts %s", one.value)
			case strings.HasSuffix(one.key, ".procs") || strings.HasSuffix(one.key, ".tasks"):
				t.Errorf("moves processes: %s = %s", one.key, one.value)
			case one.key == "lxc.rootfs.path" && one.value != "dir:/var/lib/lxc/one/rootfs":
				t.Errorf("has its root at %s", one.value)
			}
		}
		if last(again, "lxc.rootfs.path") == "" {
			t.Error("has the node's root")
		}
	})
}

// leaks reports whether a mount shows a directory of the node that is not for all, or that is writable.
func leaks(entry string) bool {
	fields := strings.Fields(entry)
	options := strings.Split(fields[3], ",")
	has := func(option string) bool { return slices.Contains(options, option) }
	return has("rbind") || has("bind") && (!has("ro") || has("rw") || strings.HasPrefix(fields[0], "/etc"))
}
