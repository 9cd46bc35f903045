package engines

import "strings"

// property is a property of a container that it must keep on any node.
type property struct {
	name string
	// asked is the request to each engine: flags, or lines of a configuration. An engine that is missing
	// here does not have the property; with an empty request its containers have it anyway, each in its own
	// way.
	asked map[string][]string
	// look is a script that shows the property, in the container, or on its node, where $PID is its first
	// process. "": the engine's report is enough.
	look    string
	outside bool
	want    string // part of the script's output, if the property was requested
	refusal string // a refusal with this word is allowed, for a separate container
	unable  string // what the machine may lack for it, as in the refusal
}

// The engines, by Godwit's names. Its own has none.
const (
	ownEngine        = ""
	dockerEngine     = "docker"
	podmanEngine     = "podman"
	containerdEngine = "containerd"
	lxcEngine        = "lxc"
)

// alike returns the flags of engines with the same command line; others have their own.
func alike(flags ...string) map[string][]string {
	return map[string][]string{dockerEngine: flags, podmanEngine: flags}
}

func with(asked map[string][]string, engine string, flags ...string) map[string][]string {
	asked[engine] = flags
	return asked
}

// everywhere is for properties that all containers have.
func everywhere() map[string][]string {
	return map[string][]string{ownEngine: {}, dockerEngine: {}, podmanEngine: {}, containerdEngine: {},
		lxcEngine: {}}
}

// limit shows a setting of a control group of version 1, or else of version 2.
func limit(controller, file, unified string) string {
	return `at=$(grep -E "^[0-9]+:([^:]*,)?` + controller + `(,[^:]*)?:" /proc/$PID/cgroup | cut -d: -f3)
		cat /sys/fs/cgroup/` + controller + `$at/` + file + ` 2>/dev/null || cat /sys/fs/cgroup$(grep ^0:: /proc/$PID/cgroup | cut -d: -f3)/` + unified
}

// properties that all fit one container.
func properties() []property {
	return append(limits(), []property{
		{
			name: "environment", look: `busybox tr '\0' '\n' </proc/1/environ | busybox grep COLOUR`,
			want: "COLOUR=blue",
			asked: with(with(with(alike("--env", "COLOUR=blue"), ownEngine, "--env", "COLOUR=blue"),
				containerdEngine, "--env", "COLOUR=blue"), lxcEngine, "lxc.environment = COLOUR=blue"),
		},
		{name: "files", look: `cat /file`, want: "kept", asked: everywhere()},
		{
			name: "tmpfs",
			look: `busybox df -k /scratch | busybox tail -1 | busybox tr -s ' '; cat /scratch/x`,
			want: "2048",
			asked: with(with(with(alike("--tmpfs", "/scratch:size=2m,mode=1777"), ownEngine, "--tmpfs",
				"/scratch:size=2m"),
				containerdEngine, "--mount", "type=tmpfs,src=tmpfs,dst=/scratch,options=size=2m:mode=1777"),
				lxcEngine, "lxc.mount.entry = tmpfs scratch tmpfs size=2m,create=dir 0 0"),
		},
		{name: "/dev/shm", look: `cat /dev/shm/x`, want: "kept",
			asked: with(with(alike("--shm-size", "8m"), ownEngine), containerdEngine)},
		{
			name: "volumes", look: `cat /data/x; [ ! -d /own ] || cat /own/x`, want: "kept",
			asked: with(alike("--volume", "conformance:/data", "--volume", "/own"), ownEngine, "--volume",
				"conformance:/data"),
		},
		{
			name: "host directory, read-only", look: `cat /host/x`, want: "kept",
			asked: with(alike("--volume", "/tmp/host:/host:ro"), containerdEngine, "--mount",
				"type=bind,src=/tmp/host,dst=/host,options=rbind:ro"),
		},
		{
			name: "host name", look: `busybox hostname`, want: "wader",
			asked: with(with(alike("--hostname", "wader"), ownEngine, "--hostname", "wader"), lxcEngine),
		},
		{
			name: "working directory", look: `busybox readlink /proc/1/cwd`, want: "/scratch",
			asked: with(with(alike("--workdir", "/scratch"), ownEngine, "--workdir", "/scratch"),
				containerdEngine, "--cwd", "/scratch"),
		},
		{name: "init process", look: `busybox tr '\0' ' ' </proc/1/cmdline`, want: "init",
			asked: with(alike("--init"), lxcEngine)},
		{
			name: "labels",
			asked: with(with(alike("--label", "team=red"), ownEngine, "--label", "team=red"),
				containerdEngine, "--label", "team=red"),
		},
		{
			name: "restart policy",
			asked: with(with(alike("--restart", "unless-stopped"), containerdEngine, "--label",
				"containerd.io/restart.status=running"), lxcEngine),
		},
		{
			name: "health check",
			asked: map[string][]string{
				dockerEngine: {"--health-cmd", "test -e /scratch/x", "--health-interval", "1s"},
				// a lab's node has no systemd that would run it
				podmanEngine: {"--health-cmd", "test -e /scratch/x", "--health-interval", "disable"},
				ownEngine:    {"--health-cmd", "test -e /scratch/x", "--health-interval", "1s"},
			},
		},
		{name: "stop signal", asked: with(alike("--stop-signal", "USR1", "--stop-timeout", "3"), ownEngine,
			"--stop-signal", "USR1", "--stop-timeout", "3s")},
		{name: "hosts and resolver",
			look: `cat /etc/hosts /etc/resolv.conf 2>/dev/null | busybox grep -v host.containers.internal || true`, asked: with(everywhere(), dockerEngine, "--add-host", "nest:10.1.2.3")},
		{name: "loopback", look: `busybox ip -o link show lo | busybox grep -o '<.*>'`, want: "UP",
			asked: everywhere()},
		{name: "mounts", look: mountsOf, asked: everywhere()},
		{name: "devices", look: `busybox ls /dev | busybox sort`, asked: everywhere()},
	}...)
}

// mountsOf shows the mounts, and whether they are writable. Mounts that hide files of the kernel depend on
// the node.
const mountsOf = `busybox awk '{ print $2, $2 ~ "^/(proc|sys)/" ? "" : $3, substr($4, 1, 2) }' /proc/1/mounts | busybox sort`

// limits are the kernel's restrictions of a container.
func limits() []property {
	const status = `busybox grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/1/status`
	return []property{
		{
			name: "memory limit", look: limit("memory", "memory.limit_in_bytes", "memory.max"), outside: true,
			want: "67108864",
			asked: with(with(with(alike("--memory", "64m"), ownEngine, "--memory", "64m"), containerdEngine,
				"--memory-limit", "67108864"), lxcEngine, "lxc.cgroup.memory.limit_in_bytes = 64M"),
		},
		{
			name: "CPU limit", look: limit("cpu", "cpu.cfs_quota_us", "cpu.max"), outside: true,
			want: "50000",
			asked: with(with(with(alike("--cpus", "0.5"), ownEngine, "--cpus", "0.5"), containerdEngine,
				"--cpus", "0.5"), lxcEngine, "lxc.cgroup.cpu.cfs_quota_us = 50000"),
		},
		{
			name: "process limit", look: limit("pids", "pids.max", "pids.max"), outside: true, want: "50",
			asked: with(with(alike("--pids-limit", "50"), ownEngine, "--pids", "50"), lxcEngine,
				"lxc.cgroup.pids.max = 50"),
		},
		{
			name: "ulimits", look: `busybox grep 'open files' /proc/1/limits`, want: "512",
			asked: map[string][]string{dockerEngine: {"--ulimit", "nofile=512:1024"},
				lxcEngine: {"lxc.prlimit.nofile = 512:1024"}},
		},
		{
			name: "privileges", look: status, want: "NoNewPrivs:\t1",
			asked: with(with(with(alike("--cap-drop", "MKNOD", "--security-opt", "no-new-privileges"),
				ownEngine), containerdEngine, "--cap-drop", "CAP_MKNOD"), lxcEngine),
		},
		{name: "OOM score", look: `cat /proc/1/oom_score_adj`, want: "100",
			asked: alike("--oom-score-adj", "100")},
	}
}

// apartProperties need a separate container each.
func apartProperties() []property {
	terminal := `busybox readlink /proc/1/fd/0 | busybox sed 's/[0-9]*$//'; busybox stty -F /proc/1/fd/0 size`
	return []property{
		{
			name: "user",
			look: `busybox grep -E '^(Uid|Gid|Groups):' /proc/1/status | busybox tr -s '\t ' ' '`,
			want: "Uid: 1001 1001 1001 1001", unable: "CAP_SYS_RESOURCE",
			asked: with(alike("--user", "1001:1002", "--group-add", "50"), ownEngine, "--user", "1001:1002"),
		},
		{
			name: "read-only root",
			look: `touch /x 2>&1 || true; busybox grep ' / ' /proc/1/mounts | busybox grep -o ' ro,'`,
			want: "Read-only",
			asked: with(with(alike("--read-only"), ownEngine, "--read-only"), containerdEngine,
				"--read-only"),
		},
		{
			name: "terminal", look: terminal, want: "/dev/pts", refusal: "tty",
			asked: with(alike("--tty", "--interactive"), ownEngine, "--tty"), // ctr needs a terminal itself
		},
		{name: "secrets", look: `cat /run/secrets/conformance`, want: "hush", refusal: "--secret",
			asked: map[string][]string{podmanEngine: {"--secret", "conformance"}}},
	}
}

// askedFor returns the request for these properties to an engine, and the requested ones.
func askedFor(engine string, all []property) (flags []string, has []property) {
	for _, p := range all {
		if asked, is := p.asked[engine]; is {
			flags, has = append(flags, asked...), append(has, p)
		}
	}
	return flags, has
}

// looked returns a script that shows properties, each under its name.
func looked(all []property, outside bool) string {
	script := strings.Builder{}
	script.WriteString("busybox() { /bin/busybox \"$@\"; }\n")
	for _, p := range all {
		if p.look != "" && p.outside == outside {
			script.WriteString("echo; echo '" + mark + p.name + "'\n" + p.look + "\n")
		}
	}
	return script.String()
}

// mark begins a property's name in the output of such a script.
const mark = "== "

// shown returns the output of such a script, by property.
func shown(said string) map[string]string {
	all := map[string]string{}
	for part := range strings.SplitSeq("\n"+said, "\n"+mark) {
		name, value, _ := strings.Cut(part, "\n")
		if name != "" {
			all[name] = strings.TrimSpace(value)
		}
	}
	return all
}
