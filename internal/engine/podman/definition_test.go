package podman

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine"
)

var (
	testID    = strings.Repeat("1a", 32)
	testLayer = "sha256:" + strings.Repeat("2b", 32)
)

// valid returns a definition as another node would send it, after change.
func valid(t *testing.T, change func(*engine.Definition, *extra)) engine.Definition {
	t.Helper()
	x := extra{
		Config: config{Env: []string{"A=b"}, Cmd: []string{"--rm", "x"},
			Labels: map[string]string{"team": "red"}, StopSignal: "15"},
		Host: host{NetworkMode: "none", IpcMode: "shareable", limits: limits{Memory: 1 << 20},
			LogConfig: logConfig{Type: logDriver}, Tmpfs: map[string]string{"/t": "rw"}},
		Mounts: []mount{{Type: "volume", Name: "data", Destination: "/data", RW: true}},
		Args:   []string{"/bin/sh", "--rm", "x"}, Command: 2,
		Stdio: []string{"/dev/null", "pipe:[1]", "pipe:[2]"},
	}
	d := engine.Definition{
		EngineName: Name, ID: testID, Name: "web", Image: "localhost/web:1", ImageID: idPrefix + testID,
		Layers: []string{testLayer}, Limits: engine.Limits{MemoryBytes: 1 << 20},
		Volumes: []engine.Volume{{Engine: Name, Kind: engine.Named, Name: "data", Path: "/data"}},
	}
	change(&d, &x)
	var err error
	if d.Engine, err = json.Marshal(x); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDecode checks that a definition from another node is accepted only if this engine could have made it.
func TestDecode(t *testing.T) {
	if _, err := decode(valid(t, func(*engine.Definition, *extra) {})); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*engine.Definition, *extra){
		"id":           func(d *engine.Definition, _ *extra) { d.ID = "../x" },
		"name":         func(d *engine.Definition, _ *extra) { d.Name = "--privileged" },
		"image":        func(d *engine.Definition, _ *extra) { d.Image = "--privileged" },
		"image's id":   func(d *engine.Definition, _ *extra) { d.ImageID = "-v" },
		"no layers":    func(d *engine.Definition, _ *extra) { d.Layers = nil },
		"layers":       func(d *engine.Definition, _ *extra) { d.Layers = []string{"sha256:../../x"} },
		"descriptors":  func(_ *engine.Definition, x *extra) { x.Stdio[0] = "/etc/passwd" },
		"command":      func(_ *engine.Definition, x *extra) { x.Command = 4 },
		"limits":       func(d *engine.Definition, _ *extra) { d.Limits.Pids = 7 },
		"other volume": func(_ *engine.Definition, x *extra) { x.Mounts[0].Name = "other" },
		"more mounts": func(_ *engine.Definition, x *extra) {
			x.Mounts = append(x.Mounts, mount{Type: "bind", Source: "/etc", Destination: "/e"})
		},
		"mount's kind": func(_ *engine.Definition, x *extra) {
			x.Mounts = append(x.Mounts, mount{Type: "image", Source: "/etc", Destination: "/e"})
		},
		"volume's name": func(d *engine.Definition, x *extra) {
			d.Volumes[0].Name, x.Mounts[0].Name = "a:b",
				"a:b"
		},
		"volume's path": func(d *engine.Definition, x *extra) {
			d.Volumes[0].Path,
				x.Mounts[0].Destination = "/a:b", "/a:b"
		},
		"log's size": func(_ *engine.Definition,
			x *extra) {
			x.Host.LogConfig.Size = "1mb,path=/etc/cron.d/x"
		},
		"log's tag": func(_ *engine.Definition,
			x *extra) {
			x.Host.LogConfig.Tag = "x,path=/etc/cron.d/x"
		},
		"log's tag, line": func(_ *engine.Definition, x *extra) { x.Host.LogConfig.Tag = "x\n" },
		"quoted tag":      func(_ *engine.Definition, x *extra) { x.Host.LogConfig.Tag = `"x` },
		"capability": func(_ *engine.Definition,
			x *extra) {
			x.Host.CapDrop = []string{"CAP_KILL,CAP_CHOWN"}
		},
		"host": func(_ *engine.Definition,
			x *extra) {
			x.Host.ExtraHosts = []string{"a:10.0.0.1,b:10.0.0.2"}
		},
		"server": func(_ *engine.Definition, x *extra) { x.Host.DNS = []string{"10.0.0.1\n10.0.0.2"} },
		"group":  func(_ *engine.Definition, x *extra) { x.Host.GroupAdd = []string{`"x"`} },
		"limit": func(_ *engine.Definition,
			x *extra) {
			x.Host.Ulimits = []ulimit{{Name: "host,RLIMIT_NOFILE"}}
		},
		"time zone": func(_ *engine.Definition, x *extra) { x.Config.Timezone = "../../../etc/shadow" },
		"tmpfs":     func(_ *engine.Definition, x *extra) { x.Host.Tmpfs = map[string]string{"/data": "rw"} },
	} {
		if _, err := decode(valid(t, change)); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	for _, log := range []logConfig{{Tag: "{{.Name}}/x"}, {Size: "1.049MB"}, {Size: "0B"}, {Size: "10kB"},
		{Size: "-1B"}} {
		if _,
			err := decode(valid(t,
			func(_ *engine.Definition, x *extra) { x.Host.LogConfig = log })); err != nil {
			t.Error(err)
		}
	}
	if _, err := decode(valid(t, func(_ *engine.Definition, x *extra) {
		x.Config.Timezone, x.Host.Ulimits, x.Host.ExtraHosts = "Europe/Berlin",
			[]ulimit{{Name: "RLIMIT_NOFILE"}}, []string{"a:10.0.0.1", "b:fd00::1"}
	})); err != nil {
		t.Error(err)
	}
}

// TestCreateArgs checks that no value is taken for a flag, and that a setting with its own flag appears
// once.
func TestCreateArgs(t *testing.T) {
	d := valid(t, func(_ *engine.Definition, x *extra) { x.Config.Hostname = "--privileged" })
	x, err := decode(d)
	if err != nil {
		t.Fatal(err)
	}
	args, err := createArgs(d, x, d.Image)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(args, d.Image)
	if at < 0 || !slices.Equal(args[at+1:], []string{"--rm", "x"}) {
		t.Fatalf("%q", args)
	}
	for _, wanted := range []string{
		"--name=web", "--env=A=b", "--label=team=red", "--hostname=--privileged", "--memory=1048576b",
		"--volume=data:/data:rw", `--entrypoint=["/bin/sh"]`,
		"--network=none", "--tmpfs=/t:rw", "--stop-signal=15", "--runtime=godwit",
	} {
		if !slices.Contains(args[:at], wanted) {
			t.Errorf("%s is not told: %q", wanted, args)
		}
	}
	for _, arg := range args[1:at] {
		if arg != "create" && (!strings.HasPrefix(arg, "--") || !strings.Contains(arg, "=")) {
			t.Errorf("%q stands alone", arg)
		}
	}
	x.Config.Env = []string{"HOME"}
	if _, err := createArgs(d, x, d.Image); err == nil {
		t.Error("a variable of the agent's is given to the container")
	}
}

// TestObstacles checks that both nodes refuse settings that weaken the node's protection.
func TestObstacles(t *testing.T) {
	x := extra{Host: host{NetworkMode: "none"}}
	if found := obstacles(x.Config, x.Host, x.Mounts); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	for want, change := range map[string]func(*config, *host){
		"--privileged": func(_ *config, h *host) { h.Privileged = true },
		"--cap-add CAP_SYS_ADMIN": func(_ *config,
			h *host) {
			h.CapAdd = []string{"CAP_SYS_ADMIN"}
		},
		"--security-opt seccomp=unconfined": func(_ *config,
			h *host) {
			h.SecurityOpt = []string{"seccomp=unconfined"}
		},
		"--device":        func(_ *config, h *host) { h.Devices = []any{"x"} },
		"--network pasta": func(_ *config, h *host) { h.NetworkMode = "pasta" },
		"--annotation org.criu.config": func(c *config,
			_ *host) {
			c.Annotations = map[string]string{"org.criu.config": "/x"}
		},
		"--secret": func(c *config, _ *host) { c.Secrets = []any{"x"} },
		"--tmpfs /x": func(_ *config,
			h *host) {
			h.Tmpfs = map[string]string{"/x": "rw,upperdir=/etc"}
		},
		"--userns, --uidmap or --gidmap": func(_ *config, h *host) { h.UsernsMode = "private" },
	} {
		c, h := config{}, host{NetworkMode: "none"}
		change(&c, &h)
		if found := obstacles(c, h, nil); len(found) != 1 || found[0].What != want {
			t.Errorf("%+v, want %s", found, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"config":{},"host_config":{},"args":["x"],"stdio":["","",""]}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		d := engine.Definition{EngineName: Name, ID: testID, Name: "web", Image: "web",
			ImageID: idPrefix + testID, Layers: []string{testLayer}, Engine: data}
		if x, err := decode(d); err == nil {
			_, _ = createArgs(d, x, d.Image)
			obstacles(x.Config, x.Host, x.Mounts)
		}
	})
}

// TestScratch checks that the tmpfs that Podman itself makes for a read-only root are made at the target,
// too, whichever version lists them.
func TestScratch(t *testing.T) {
	mounts := func(device string, places ...string) (spec specs.Spec) {
		spec.Mounts = []specs.Mount{{Destination: "/dev", Type: "tmpfs", Options: []string{"nosuid", device}}}
		for _, place := range places {
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: place, Type: "tmpfs"})
		}
		return spec
	}
	for name, c := range map[string]struct {
		host   host
		bundle specs.Spec
		want   bool
	}{
		"not listed (5.4)": {host{ReadonlyRootfs: true}, mounts("rw", scratchPlaces...), true},
		"listed (4.3)": {host{ReadonlyRootfs: true,
			Tmpfs: map[string]string{"/run": "rw", "/tmp": "rw", "/var/tmp": "rw"}},
			mounts("rw", scratchPlaces...), true},
		"without it": {host{ReadonlyRootfs: true}, mounts("rw"), false},
		"without it, one asked for": {host{ReadonlyRootfs: true, Tmpfs: map[string]string{"/run": "rw"}},
			mounts("rw", "/run"), false},
		"without it (5.4), all of them": {host{ReadonlyRootfs: true}, mounts("ro", scratchPlaces...), false},
		"a root to change":              {host{}, mounts("rw", scratchPlaces...), false},
	} {
		if got := hasScratch(inspected{Host: c.host}, c.bundle); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	for _, scratch := range []bool{true, false} {
		var f flags
		f.mounts(extra{Host: host{ReadonlyRootfs: true}, Scratch: scratch})
		if wanted := fmt.Sprintf("--read-only-tmpfs=%t", scratch); !slices.Contains(f, wanted) {
			t.Errorf("%q, want %s", f, wanted)
		}
	}
}

// TestSecretVariables checks that a secret in a variable is found in the command that made the container,
// and not in the command that the container runs.
func TestSecretVariables(t *testing.T) {
	for command, want := range map[string]bool{
		"podman run --secret one,type=env,target=TOKEN image":       true,
		"podman run --secret=one,type=env image run --secret x":     true,
		"podman run --secret one image":                             false, // Podman itself lists it
		"podman run image run --secret x,type=env":                  false,
		"podman run --label --secret image run --secret=x,type=env": false,
		"podman run --secret":                                       false,
	} {
		args := strings.Fields(command)
		c := ownConfig{CreateCommand: args}
		if i := slices.Index(args, "image"); i > 0 {
			c.Cmd = args[i+1:]
		}
		if got := secretVariables(c); got != want {
			t.Errorf("%s: %t", command, got)
		}
	}
}

// TestSecretObstacles checks that Podman is queried for secrets if the container was made without a
// command.
func TestSecretObstacles(t *testing.T) {
	for _, c := range []struct {
		command []string
		script  string
		refused bool
	}{
		{nil, "echo 0123", true}, {nil, "exit 0", false}, {nil, "echo broken >&2; exit 125", true},
		{[]string{"podman", "run", "image"}, "echo 0123", false},
	} {
		fakePodman(t, c.script)
		if found := secretObstacles(t.Context(),
			ownConfig{CreateCommand: c.command}); (len(found) > 0) != c.refused {
			t.Errorf("%v, %s: %+v", c.command, c.script, found)
		}
	}
}
