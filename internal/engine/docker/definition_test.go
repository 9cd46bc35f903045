package docker

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// good returns a definition as another node would send it.
func good(t testing.TB, change func(*engine.Definition, *extra)) engine.Definition {
	t.Helper()
	d := engine.Definition{
		EngineName: Name, ID: strings.Repeat("5f", 32), Name: "web",
		ImageID: "sha256:" + strings.Repeat("cd", 32), Layers: []string{"sha256:" + strings.Repeat("ab", 32)},
	}
	x := extra{
		Config: &container.Config{Image: "x"}, Host: &container.HostConfig{NetworkMode: "none"},
		Stdio: []string{"/dev/null", "pipe:[4711]", "pipe:[4712]"},
	}
	change(&d, &x)
	var err error
	if d.Engine, err = json.Marshal(x); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDecode(t *testing.T) {
	volume := engine.Volume{Engine: Name, Name: "data", Path: "/data"}
	if _,
		err := decode(good(t, func(d *engine.Definition,
		_ *extra) {
		d.Volumes = []engine.Volume{volume}
	})); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*engine.Definition, *extra){
		"id":              func(d *engine.Definition, _ *extra) { d.ID = "../" + d.ID[3:] },
		"name":            func(d *engine.Definition, _ *extra) { d.Name = "a/b" },
		"no config":       func(_ *engine.Definition, x *extra) { x.Config = nil },
		"no host config":  func(_ *engine.Definition, x *extra) { x.Host = nil },
		"no layers":       func(d *engine.Definition, _ *extra) { d.Layers = nil },
		"layer":           func(d *engine.Definition, _ *extra) { d.Layers[0] = "sha256:x" },
		"stdio":           func(_ *engine.Definition, x *extra) { x.Stdio[1] = "/etc/passwd" },
		"two descriptors": func(_ *engine.Definition, x *extra) { x.Stdio = x.Stdio[:2] },
		"volumes from":    func(_ *engine.Definition, x *extra) { x.Host.VolumesFrom = []string{"db"} },
		"volume's name": func(d *engine.Definition, _ *extra) {
			d.Volumes = []engine.Volume{{Engine: Name, Name: "../x", Path: "/data"}}
		},
		"volume's path": func(d *engine.Definition, _ *extra) {
			d.Volumes = []engine.Volume{{Engine: Name, Name: "data", Path: "/a/../b"}}
		},
		"others' volume": func(d *engine.Definition,
			_ *extra) {
			d.Volumes = []engine.Volume{{Name: "data", Path: "/data"}}
		},
		"host directory": func(d *engine.Definition, _ *extra) {
			d.Volumes = []engine.Volume{{Kind: engine.Bind, Source: "/", Path: "/data"}}
		},
		"tmpfs": func(d *engine.Definition,
			_ *extra) {
			d.Volumes = []engine.Volume{{Kind: engine.Tmpfs, Path: "/data"}}
		},
		"two at a place": func(d *engine.Definition,
			_ *extra) {
			d.Volumes = []engine.Volume{volume, volume}
		},
		"hidden mount": func(_ *engine.Definition, x *extra) { x.Host.Binds = []string{"/:/host"} },
		"limits":       func(_ *engine.Definition, x *extra) { x.Host.Memory = 1 << 20 },
		"address":      func(d *engine.Definition, _ *extra) { d.Network.MAC = "02:00:00:00:00:01" },
		"image":        func(d *engine.Definition, _ *extra) { d.ImageID = "busybox" },
		"no address":   func(_ *engine.Definition, x *extra) { x.Host.NetworkMode = "birds" },
	} {
		if _, err := decode(good(t, change)); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}

func TestObstacles(t *testing.T) {
	for what, change := range map[string]func(*container.HostConfig){
		"--privileged":           func(h *container.HostConfig) { h.Privileged = true },
		"--pid host":             func(h *container.HostConfig) { h.PidMode = "host" },
		"--ipc shareable":        func(h *container.HostConfig) { h.IpcMode = "shareable" },
		"--network container:db": func(h *container.HostConfig) { h.NetworkMode = "container:db" },
		"--runtime kata":         func(h *container.HostConfig) { h.Runtime = "kata" },
		"--device or --gpus":     func(h *container.HostConfig) { h.DeviceRequests = []container.DeviceRequest{{}} },
		"--userns host":          func(h *container.HostConfig) { h.UsernsMode = "host" },
		"--device-cgroup-rule": func(h *container.HostConfig) {
			h.DeviceCgroupRules = []string{
				"a *:* rwm"}
		},
		"--cgroup-parent /x": func(h *container.HostConfig) { h.CgroupParent = "/x" },
		"--sysctl": func(h *container.HostConfig) {
			h.Sysctls = map[string]string{
				"net.core.somaxconn": "1"}
		},
		"--log-driver gelf": func(h *container.HostConfig) { h.LogConfig.Type = "gelf" },
		"--cap-add SYS_ADMIN": func(h *container.HostConfig) {
			h.CapAdd = []string{"CAP_CHOWN",
				"SYS_ADMIN"}
		},
		"--cap-add ALL": func(h *container.HostConfig) { h.CapAdd = []string{"ALL"} },
		"--cap-add NET_ADMIN": func(h *container.HostConfig) {
			h.NetworkMode, h.CapAdd = "host", []string{"NET_ADMIN"}
		},
		"--security-opt seccomp=unconfined": func(h *container.HostConfig) {
			h.SecurityOpt = []string{
				"seccomp=unconfined"}
		},
		"--security-opt systempaths=unconfined": func(h *container.HostConfig) {
			h.MaskedPaths, h.ReadonlyPaths = []string{}, []string{}
		},
		"--volume /x:/x:rshared": func(h *container.HostConfig) { h.Binds = []string{"/x:/x:rshared"} },
		"--mount at /x": func(h *container.HostConfig) {
			h.Mounts = []mount.Mount{{Type: mount.TypeVolume, Target: "/x",
				VolumeOptions: &mount.VolumeOptions{Subpath: "y"}}}
		},
		"--volume-driver rexray": func(h *container.HostConfig) { h.VolumeDriver = "rexray" },
	} {
		h := container.HostConfig{
			NetworkMode: "none", IpcMode: "private", Runtime: "runc",
			CapAdd:        []string{"NET_ADMIN", "CAP_SYS_PTRACE"},
			SecurityOpt:   []string{"no-new-privileges"},
			MaskedPaths:   append([]string{"/proc/interrupts"}, oci.MaskedPaths...),
			ReadonlyPaths: oci.ReadonlyPaths,
			LogConfig:     container.LogConfig{Type: logDriver}, Binds: []string{"/a:/a:ro,z"},
			Mounts: []mount.Mount{{Type: mount.TypeTmpfs, Target: "/t"}},
		}
		if found := obstacles(&h); len(found) > 0 {
			t.Fatalf("%+v", found)
		}
		change(&h)
		if found := obstacles(&h); len(found) != 1 || found[0].What != what {
			t.Errorf("%s: %+v", what, found)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(good(f, func(*engine.Definition, *extra) {}).Engine))
	f.Fuzz(func(_ *testing.T, data []byte) {
		d := engine.Definition{ID: strings.Repeat("5f", 32), Name: "web", Engine: data}
		if x, err := decode(d); err == nil {
			obstacles(x.Host)
		}
	})
}
