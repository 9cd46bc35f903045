package embedded

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
)

const (
	// minMemoryBytes is the least memory in which runc and CRIU can start a container (Docker has the same
	// bound).
	minMemoryBytes = 6 << 20
	// cpuPeriod is the kernel's default CFS period in microseconds.
	cpuPeriod = 100_000
	// nofile is the limit of open files: the usual limit of service managers, so that a container has the
	// same limit on every node.
	nofileSoft, nofileHard = 1024, 524288
)

// defaultCapabilities are Docker's (moby/moby, daemon/pkg/oci/caps/defaults.go).
func defaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
		"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL",
		"CAP_AUDIT_WRITE",
	}
}

// maskedPaths and readonlyPaths are Docker's (moby/moby, daemon/pkg/oci/defaults.go).
func maskedPaths() []string {
	return []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// specInput is everything from which an OCI specification is made.
type specInput struct {
	definition engine.Definition
	files      container
	netns      string
	user       specs.User
	home       string
	unified    bool // only cgroup v2 is mounted
}

// makeSpec makes the OCI specification of a container.
func makeSpec(in specInput) (*specs.Spec, error) {
	d := in.definition
	spec := &specs.Spec{
		Version:  "1.0.2", // the version that runc 1.1 and later read
		Process:  processOf(in),
		Root:     &specs.Root{Path: in.files.rootfs(), Readonly: d.ReadOnly},
		Hostname: hostname(d),
		Mounts:   mountsOf(in),
		// CRIU must not read a configuration file of this node, which would silently change its options.
		Annotations: map[string]string{"org.criu.config": ""},
		Linux: &specs.Linux{
			CgroupsPath:   in.files.cgroup(),
			Namespaces:    namespacesOf(in),
			Resources:     resourcesOf(d.Limits),
			MaskedPaths:   maskedPaths(),
			ReadonlyPaths: readonlyPaths(),
		},
	}
	filter, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		return nil, fmt.Errorf("make seccomp profile of %s: %w", d.Name, err)
	}
	spec.Linux.Seccomp = filter
	return spec, nil
}

func hostname(d engine.Definition) string {
	if d.Hostname != "" {
		return d.Hostname
	}
	return d.ID[:12]
}

func processOf(in specInput) *specs.Process {
	d := in.definition
	dir := d.Dir
	if dir == "" {
		dir = "/"
	}
	capabilities := &specs.LinuxCapabilities{Bounding: defaultCapabilities()}
	// as Docker does: a user other than root has none, but may gain them by set-user-id programs
	if in.user.UID == 0 {
		capabilities.Effective, capabilities.Permitted = defaultCapabilities(), defaultCapabilities()
	}
	return &specs.Process{
		Terminal:     d.TTY,
		User:         in.user,
		Args:         d.Args,
		Env:          environmentOf(d, in.home),
		Cwd:          dir,
		Capabilities: capabilities,
		Rlimits:      openFiles(),
	}
}

// openFiles limits the container's open files. An agent that may not raise limits can only give what it has
// itself.
func openFiles() []specs.POSIXRlimit {
	soft, hard := uint64(nofileSoft), uint64(nofileHard)
	var own unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &own) == nil {
		hard = min(hard, own.Max)
	}
	return []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: min(soft, hard), Hard: hard}}
}

// environmentOf adds the variables that every container has, unless the definition sets them.
func environmentOf(d engine.Definition, home string) []string {
	env := slices.Clone(d.Env)
	set := func(name, value string) {
		has := func(v string) bool { return strings.HasPrefix(v, name+"=") }
		if !slices.ContainsFunc(env, has) {
			env = append(env, name+"="+value)
		}
	}
	set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	set("HOSTNAME", hostname(d))
	set("HOME", home)
	if d.TTY {
		set("TERM", "xterm")
	}
	return env
}

func namespacesOf(in specInput) []specs.LinuxNamespace {
	namespaces := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace, Path: in.netns},
	}
	if in.unified {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return namespaces
}

// mountsOf lists the container's mounts in the order in which they are made. On machines with cgroup v1 the
// container has no /sys/fs/cgroup, because the mounts of a dozen hierarchies would have to be made again
// within the freeze.
func mountsOf(in specInput) []specs.Mount {
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
	}
	if in.definition.ReadOnly { // otherwise /dev is in the writable directory: see freshDev
		mounts = append(mounts, specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}})
	}
	mounts = append(mounts, []specs.Mount{
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs",
			Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue",
			Options: []string{"nosuid", "noexec", "nodev"}},
		bind(in.files.shm(), "/dev/shm", "nosuid", "noexec", "nodev"),
	}...)
	if in.unified {
		mounts = append(mounts, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"ro", "nosuid", "noexec", "nodev"}})
	}
	for _, name := range privateMounts() {
		mounts = append(mounts, bind(in.files.private()+"/"+name, "/etc/"+name))
	}
	return append(mounts, volumeMounts(in)...)
}

// volumeMounts returns the mounts of the volumes, in the order in which they are made: a nested mount after
// the one above it.
func volumeMounts(in specInput) []specs.Mount {
	var mounts []specs.Mount
	for i, v := range in.definition.Volumes {
		mount := bind(in.files.volumePath(i, v), v.Path)
		if v.Sort() == engine.Tmpfs {
			mount.Options = append(mount.Options, "nosuid", "noexec", "nodev")
		}
		if v.ReadOnly {
			mount.Options = append(mount.Options, "ro")
		}
		mounts = append(mounts, mount)
	}
	slices.SortStableFunc(mounts,
		func(a, b specs.Mount) int { return strings.Compare(a.Destination, b.Destination) })
	return mounts
}

// privateMounts are the files of the private directory that are mounted into the container's /etc.
func privateMounts() []string { return []string{"resolv.conf", "hostname", "hosts"} }

func bind(source, destination string, options ...string) specs.Mount {
	options = append([]string{"bind", "rprivate"}, options...)
	return specs.Mount{Destination: destination, Type: "bind", Source: source, Options: options}
}

func resourcesOf(limits engine.Limits) *specs.LinuxResources {
	resources := &specs.LinuxResources{Devices: allowedDevices()}
	if limits.MemoryBytes > 0 {
		resources.Memory = &specs.LinuxMemory{Limit: &limits.MemoryBytes}
	}
	if limits.CPUs > 0 {
		quota, period := int64(math.Round(limits.CPUs*cpuPeriod)), uint64(cpuPeriod)
		resources.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if limits.Pids > 0 {
		resources.Pids = &specs.LinuxPids{Limit: &limits.Pids}
	}
	return resources
}

// allowedDevices forbids all devices. runc itself allows those that every container has (null, zero, tty,
// ptmx, ...).
func allowedDevices() []specs.LinuxDeviceCgroup {
	return []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
}

// loadSpec reads a container's OCI specification.
func loadSpec(files container) (*specs.Spec, error) {
	data, err := os.ReadFile(files.spec())
	if err != nil {
		return nil, fmt.Errorf("read specification of container %.12s: %w", files.id, err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("decode specification of container %.12s: %w", files.id, err)
	}
	return &spec, nil
}

// netnsOf returns the path of the network namespace in a specification.
func netnsOf(spec *specs.Spec) string {
	if spec.Linux == nil {
		return ""
	}
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			return ns.Path
		}
	}
	return ""
}

// unified reports whether this node has only cgroup v2, as runc sees it.
func unified() bool {
	var stat unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &stat) == nil && stat.Type == unix.CGROUP2_SUPER_MAGIC
}
