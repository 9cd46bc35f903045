package containerd

import (
	"encoding/json"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// plain returns a specification as ctr makes it, as far as it matters here.
func plain() specs.Spec {
	major, minor := int64(1), int64(3)
	return specs.Spec{
		Version: "1.0.2", Root: &specs.Root{Path: "rootfs"}, Process: &specs.Process{Args: []string{"x"},
			Cwd: "/", Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN"}}},
		Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{
			CgroupsPath: "/default/web", MaskedPaths: oci.MaskedPaths, ReadonlyPaths: oci.ReadonlyPaths,
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"},
				{Type: "c", Major: &major, Minor: &minor, Access: "rwm", Allow: true}}},
		},
	}
}

// TestObstacles checks that both nodes refuse settings that are not known to be harmless.
func TestObstacles(t *testing.T) {
	if found := obstacles(plain(), "default", "web"); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	disk := int64(8)
	for want, change := range map[string]func(*specs.Spec){
		"capability CAP_SYS_ADMIN": func(s *specs.Spec) {
			s.Process.Capabilities.Ambient = []string{
				"CAP_SYS_ADMIN"}
		},
		"--tty":                  func(s *specs.Spec) { s.Process.Terminal = true },
		"hooks of the container": func(s *specs.Spec) { s.Hooks = &specs.Hooks{} },
		"--privileged":           func(s *specs.Spec) { s.Linux.MaskedPaths = nil },
		"device b 8:*": func(s *specs.Spec) {
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
				specs.LinuxDeviceCgroup{Type: "b", Major: &disk, Access: "rwm", Allow: true})
		},
		"no device limits":                 func(s *specs.Spec) { s.Linux.Resources = nil },
		"control group /other":             func(s *specs.Spec) { s.Linux.CgroupsPath = "/other" },
		"no pid namespace":                 func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] },
		"network namespace /proc/1/ns/net": func(s *specs.Spec) { s.Linux.Namespaces[4].Path = "/proc/1/ns/net" },
		"annotation org.criu.config": func(s *specs.Spec) {
			s.Annotations = map[string]string{
				"org.criu.config": "/x"}
		},
		"mount at /x": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts,
				specs.Mount{Destination: "/x", Type: "overlay"})
		},
		"root file system /etc": func(s *specs.Spec) { s.Root.Path = "/etc" },
		"settings in its OCI specification": func(s *specs.Spec) {
			s.Linux.Sysctl = map[string]string{
				"kernel.x": "1"}
		},
	} {
		spec := plain()
		change(&spec)
		if found := obstacles(spec, "default", "web"); len(found) != 1 || found[0].What != want {
			t.Errorf("%+v, want %s", found, want)
		}
	}
}

// TestMounts checks that no mount shows a container more of its node than users and agents are told.
func TestMounts(t *testing.T) {
	mounted := func(kind, at, options string) specs.Mount {
		return specs.Mount{Type: kind, Source: kind, Destination: at, Options: strings.Split(options, ",")}
	}
	bind := func(source, at, options string) specs.Mount {
		return specs.Mount{Type: "bind", Source: source, Destination: at,
			Options: strings.Split(options, ",")}
	}
	for why, m := range map[string]specs.Mount{
		"": mounted("tmpfs", "/run", "nosuid,strictatime,mode=755,size=65536k"),
		"of ptys": mounted("devpts", "/dev/pts",
			"nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"),
		"of messages":               mounted("mqueue", "/dev/mqueue", "nosuid,noexec,nodev"),
		"of devices":                mounted("sysfs", "/sys", "nosuid,noexec,nodev,ro"),
		"of groups":                 mounted("cgroup", "/sys/fs/cgroup", "ro,nosuid,noexec,nodev"),
		"of data":                   bind("/srv/data", "/data", "rbind,ro"),
		"belongs at /proc":          mounted("proc", "/p", "nosuid"),
		"something else is mounted": mounted("proc", "/proc", "nosuid"),
		"belongs at /sys/fs/cgroup": mounted("cgroup", "/cgroup", "ro"),
		"belongs at /sys":           mounted("sysfs", "/s", "ro"),
		"mounts in /proc":           mounted("tmpfs", "/proc/sys", "ro"),
		"weaken the isolation of the container": {Type: "proc", Source: "/srv", Destination: "/proc/sys",
			Options: []string{"bind"}},
		"option remount is not moved":       mounted("tmpfs", "/x", "remount"),
		"option hidepid=0 is not moved":     mounted("tmpfs", "/x", "hidepid=0"),
		"include both ro and rw":            bind("/srv/data", "/data", "rbind,ro,rw"),
		"its options include both":          mounted("sysfs", "/sys", "ro,rw"),
		"source /var/run/.. is not a plain": bind("/var/run/..", "/data", "rbind"),
		"source srv is not a plain":         bind("srv", "/data", "rbind"),
		"it is not a plain":                 bind("/srv", "/x/../sys", "rbind"),
	} {
		spec := plain()
		spec.Mounts = append(spec.Mounts, m)
		found := mountObstacles(spec)
		if fine := why == "" || strings.HasPrefix(why, "of "); fine && len(found) > 0 || !fine &&
			(len(found) != 1 || !strings.Contains(found[0].Why, why)) {
			t.Errorf("%+v: %+v, want %q", m, found, why)
		}
	}
}

// connected returns another node's description of a container on a bridge of CNI.
func connected() engine.Network {
	return engine.Network{Address: netip.MustParseAddr("10.4.0.2"), PrefixBits: 24, MAC: "0a:00:00:00:00:01",
		Bridge: "birds"}
}

// TestDecode checks that a definition from another node is accepted only if this engine could have made it.
func TestDecode(t *testing.T) {
	take := func(change func(*engine.Definition, *extra)) error {
		x := extra{Namespace: "own", ID: "web", Spec: plain(), Chain: "sha256:" + strings.Repeat("2b", 32),
			Stdio: []string{"", "", ""}}
		d := engine.Definition{EngineName: Name, Namespace: "own", ID: strings.Repeat("1a", 32),
			Name: "own.web", Image: "docker.io/library/web:1"}
		change(&d, &x)
		var err error
		if d.Engine, err = json.Marshal(x); err != nil {
			t.Fatal(err)
		}
		_, err = decode(d)
		return err
	}
	layer := "sha256:" + strings.Repeat("2b", 32)
	for what, change := range map[string]func(*engine.Definition, *extra){
		"an image without a name": func(*engine.Definition, *extra) {},
		"an image": func(d *engine.Definition, _ *extra) {
			d.ImageID, d.Layers = "sha256:"+strings.Repeat("5c", 32), []string{layer}
		},
		"an address": func(d *engine.Definition, _ *extra) { d.Network = connected() },
	} {
		if err := take(change); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, change := range map[string]func(*engine.Definition, *extra){
		"id":         func(_ *engine.Definition, x *extra) { x.ID = "../web" },
		"other name": func(d *engine.Definition, _ *extra) { d.Name = "web" },
		"namespace": func(d *engine.Definition, x *extra) {
			d.Namespace, x.Namespace, d.Name = "moby",
				"moby", "moby.web"
		},
		"namespaces": func(d *engine.Definition, _ *extra) { d.Namespace = "default" },
		"no layers": func(d *engine.Definition,
			_ *extra) {
			d.ImageID = "sha256:" + strings.Repeat("5c", 32)
		},
		"no image": func(d *engine.Definition, _ *extra) { d.Layers = []string{layer} },
		"image":    func(d *engine.Definition, _ *extra) { d.ImageID, d.Layers = "../x", []string{layer} },
		"layers": func(d *engine.Definition, _ *extra) {
			d.ImageID, d.Layers = "sha256:"+strings.Repeat("5c", 32), []string{layer, layer}
		},
		"chain":      func(_ *engine.Definition, x *extra) { x.Chain = "../x" },
		"no process": func(_ *engine.Definition, x *extra) { x.Spec.Process = nil },
		"hidden volume": func(_ *engine.Definition, x *extra) {
			x.Spec.Mounts = append(x.Spec.Mounts,
				specs.Mount{Destination: "/e", Source: "/etc", Options: []string{"rbind"}})
		},
		"other limits": func(d *engine.Definition, _ *extra) { d.Limits.Pids = 7 },
		"an address of the pool": func(d *engine.Definition,
			_ *extra) {
			d.Network = connected()
			d.Network.Bridge = ""
		},
		"other network": func(d *engine.Definition,
			_ *extra) {
			d.Network = connected()
			d.Network.Bridge = "../birds"
		},
		"no host": func(d *engine.Definition,
			_ *extra) {
			d.Network = connected()
			d.Network.PrefixBits = 32
		},
		"hardware address": func(d *engine.Definition,
			_ *extra) {
			d.Network = connected()
			d.Network.MAC += ";K8S_POD_NAME=x"
		},
		"extension": func(_ *engine.Definition, x *extra) { x.Extension = "example.org/other" },
		"a size of packets": func(d *engine.Definition,
			_ *extra) {
			d.Network = connected()
			d.Network.MTU = 9000
		},
		"ports": func(d *engine.Definition, _ *extra) {
			d.Network = connected()
			d.Ports = []engine.Published{{Protocol: "tcp", HostPort: 1, ContainerPort: 1}}
		},
		"the node's network": func(d *engine.Definition, x *extra) {
			d.Network = connected()
			x.Spec.Linux.Namespaces = x.Spec.Linux.Namespaces[:4]
		},
		"open descriptor": func(_ *engine.Definition, x *extra) { x.Stdio[0] = "/etc/passwd" },
	} {
		if err := take(change); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

// TestRestart checks that restart labels from another node run no program, and write to no file but the
// container's log.
func TestRestart(t *testing.T) {
	a := &adapter{logFiles: logFiles{"/logs"}}
	d := engine.Definition{EngineName: Name, Namespace: "own", ID: strings.Repeat("1a", 32), Name: "own.web",
		Image: "docker.io/library/web:1"}
	var err error
	if d.Engine, err = json.Marshal(extra{Namespace: "own", ID: "web", Spec: plain(),
		Chain: "sha256:" + strings.Repeat("2b", 32), Stdio: []string{"", "", ""}}); err != nil {
		t.Fatal(err)
	}
	policy := map[string]string{"status": "running", "policy": "on-failure:3", "count": "1",
		"explicitly-stopped": "false"}
	for name, value := range map[string]string{
		"": "", "loguri": "binary:///bin/sh?-c=x", "logpath": "/etc/cron.d/x", "next": "x",
		"policy": "on-failure:x", "status": "running\n",
	} {
		d.Labels = map[string]string{"other": "x"}
		for known, one := range policy {
			d.Labels[restartPrefix+known] = one
		}
		wanted := restartLabels(d.Labels)
		wanted[restartLog] = "file://" + a.logFiles.path("own/web")
		if name != "" {
			d.Labels[restartPrefix+name] = value
			if policy[name] != "" {
				delete(wanted, restartPrefix+name)
			}
		}
		if found := restartObstacles(d.Labels); (len(found) > 0) != (name != "") {
			t.Errorf("%s=%s: %+v", name, value, found)
		}
		expected, err := a.Expect(d)
		if err != nil {
			t.Fatal(err)
		}
		var taken map[string]string
		if err := json.Unmarshal(expected.Restart, &taken); err != nil || !maps.Equal(taken, wanted) {
			t.Errorf("%s=%s: %s, want %v: %v", name, value, expected.Restart, wanted, err)
		}
	}
	if found := restartObstacles(map[string]string{restartLog: "file:///logs/own.web.log"}); len(found) > 0 {
		t.Errorf("a container that has come cannot leave again: %+v", found)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(
		[]byte(
			`{"namespace":"default","id":"web","spec":{"process":{"args":["x"]},"root":{},"linux":{}},"stdio":["","",""]}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		d := engine.Definition{EngineName: Name, Namespace: "own", ID: strings.Repeat("1a", 32), Name: "web",
			Image: "web", Engine: data}
		if x, err := decode(d); err == nil {
			obstacles(x.Spec, x.Namespace, x.ID)
		}
	})
}
