package podman

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

const without = "start it without that"

// problems collects obstacles to a move.
type problems []engine.Problem

func (p *problems) add(bad bool, what, why, remedy string) {
	if bad {
		*p = append(*p, engine.Problem{What: what, Why: why, Remedy: remedy})
	}
}

// Obstacles lists the parts of a container's configuration that cannot move.
func (a *adapter) Obstacles(ctx context.Context, f oci.Container) []engine.Problem {
	found, p := native(f), problems{}
	p.add(found.Pod != "" || found.IsInfra || found.IsService, "pod of container "+found.Name,
		"the containers of a pod would have to move together", "start it without a pod")
	p.add(len(found.Dependencies) > 0, "other containers that it depends on",
		"they would have to move together", without)
	p.add(found.Rootfs != "", "--rootfs", "only containers of images move", without)
	p.add(secretVariables(found.Config), "--secret, type=env", "secrets are not moved", without)
	sysctls := optionsOf(found.Config, "--sysctl")
	p.add(len(sysctls) > 0, "--sysctl", "settings of the kernel are not moved", without)
	p = append(p, secretObstacles(ctx, found.Config)...)
	root, err := a.Root(f)
	p.add(err == nil && linked(root.Target), "storage option metacopy of Podman",
		"files of the writable layer lack their content", "set mountopt without metacopy")
	p = append(p, guardObstacles(ctx, a.guards.directory)...)
	p = append(p, connectedObstacles(ctx, found)...)
	return append(p, obstacles(found.Config.config, found.Host, found.Mounts)...)
}

// secretVariables reports whether a container has secrets as environment variables. Podman lists only its
// other secrets. It shows secret variables with the rest of the environment, where an arriving container
// would have them in the open. The command by which the container was made names them.
func secretVariables(c ownConfig) bool {
	return slices.ContainsFunc(optionsOf(c, "--secret"), func(value string) bool {
		return slices.Contains(strings.Split(value, ","), "type=env")
	})
}

// optionsOf returns the values of an option in the command by which a container was made.
func optionsOf(c ownConfig, name string) []string {
	args := c.CreateCommand
	if own := len(args) - len(c.Cmd); own > 0 && slices.Equal(args[own:], c.Cmd) {
		args = args[:own]
	}
	var values []string
	for i, arg := range args {
		value, is := strings.CutPrefix(arg, name+"=")
		if arg == name && i+1 < len(args) {
			value, is = args[i+1], true
		}
		if is {
			values = append(values, value)
		}
	}
	return values
}

// secretObstacles refuses a container that was made without a command if there are any secrets: nothing
// says whether the container has a secret as a variable.
func secretObstacles(ctx context.Context, c ownConfig) []engine.Problem {
	if len(c.CreateCommand) > 0 {
		return nil
	}
	ctx, cancel := asking(ctx)
	defer cancel()
	secrets, err := podman(ctx, "secret", "ls", "--quiet")
	p := problems{}
	p.add(err != nil, "secrets of Podman", fmt.Sprint("cannot list them: ", err),
		"try again")
	p.add(len(bytes.TrimSpace(secrets)) > 0, "secrets of Podman", "the container was made by Podman's "+
		"API, which does not show whether a variable holds a secret; secrets are not moved",
		"start it with podman run, or remove the secrets that podman secret ls lists if they are unused")
	return p
}

// linked reports whether an overlay keeps parts of files only in the layers below
// (Documentation/filesystems/overlayfs.rst).
func linked(target string) bool {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && fields[4] == target {
			return strings.Contains(lines.Text(), "metacopy=on") ||
				strings.Contains(lines.Text(), "redirect_dir=on")
		}
	}
	return false
}

// obstacles lists the obstacles that both nodes check: the source, so that the user learns early, and the
// target, because it would make the container.
func obstacles(c config, h host, mounts []mount) []engine.Problem {
	p := problems{}
	p.add(h.Privileged, "--privileged", "such a container may have any device and mount of the node", without)
	p.add(!private(h.PidMode), "--pid "+h.PidMode, "it shares processes with the node or another "+
		"container", without)
	p.add(!private(h.UTSMode), "--uts "+h.UTSMode, "its host name is the node's", without)
	p.add(!slices.Contains([]string{"", "private", "shareable", "none"}, h.IpcMode), "--ipc "+h.IpcMode,
		"shared memory of others would have to move with it", without)
	p.add(h.UsernsMode != "" || h.IDMappings != nil, "--userns, --uidmap or --gidmap",
		"user namespaces are not moved", without)
	p.add(!slices.Contains([]string{"", "host", "private"}, h.CgroupMode), "--cgroupns "+h.CgroupMode,
		"it is the namespace of another container", without)
	p.add(h.Cgroups != "" && h.Cgroups != "default", "--cgroups "+h.Cgroups,
		"it has no control group of its own", without)
	p.add(h.CgroupParent != "", "--cgroup-parent "+h.CgroupParent, "that control group is this node's",
		without)
	p.add(len(h.CgroupConf) > 0, "--cgroup-conf", "settings of control groups are not moved", without)
	p.add(len(h.Devices) > 0, "--device", "the state of devices stays on this node", without)
	p.add(len(h.VolumesFrom) > 0, "--volumes-from", "the containers would have to move together",
		"name the volumes with -v")
	p.add(h.BlkioWeight != 0 || len(h.BlkioWeightDevice)+len(h.BlkioReadBps)+len(h.BlkioWriteBps)+
		len(h.BlkioReadIOps)+len(h.BlkioWriteIOps) > 0,
		"--blkio-weight or --device-read-bps and the like", "limits of devices are not moved", without)
	p.add(h.CPURealtimePeriod != 0 || h.CPURealtime != 0, "--cpu-rt-period or --cpu-rt-runtime",
		"real-time shares are not moved", without)
	p.add(!slices.Contains([]string{"", logDriver, "json-file", "journald", "none"}, h.LogConfig.Type),
		"--log-driver "+h.LogConfig.Type, "only the program that started the container reads it", without)
	p.add(c.SystemdMode, "--systemd", "processes in control groups within the container are not moved",
		"start it with --systemd=false")
	p.add(c.Timeout != 0, "--timeout", "the timeout would start over", without)
	p.add(len(c.Secrets) > 0, "--secret", "secrets are not moved", without)
	p.add(len(c.ChrootDirs) > 0, "--chrootdirs", "they are not moved", without)
	for name := range c.Annotations {
		p.add(!ownAnnotation(name), "--annotation "+name, "its meaning to the runtime is unknown",
			without)
	}
	p = append(append(p, privilegeObstacles(h)...), mountObstacles(h, mounts)...)
	return append(p, networkObstacles(h)...)
}

func private(mode string) bool { return mode == "" || mode == "private" }

// ownAnnotations are the annotations that Podman itself makes, for example for a container's stop signal
// and timeout, and this package's own. The target is told none of them: Podman makes its own there.
var ownAnnotations = []string{"io.container.manager", "org.systemd.property.KillSignal",
	"org.systemd.property.TimeoutStopUSec", arrivalAnnotation}

func ownAnnotation(name string) bool {
	return slices.Contains(ownAnnotations, name) ||
		slices.ContainsFunc([]string{"io.kubernetes.cri-o.", "org.opencontainers.image.",
			"io.podman.annotations."},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// privilegeObstacles lists settings that weaken the node's protection against the container. The target
// cannot know who has allowed them at the source.
func privilegeObstacles(h host) []engine.Problem {
	p := problems{}
	const why = "it weakens the isolation of the container from its node"
	for _, name := range h.CapAdd {
		p.add(!oci.HarmlessCapability(name, h.NetworkMode != "host"), "--cap-add "+name, why, without)
	}
	for _, option := range h.SecurityOpt {
		p.add(option != "no-new-privileges", "--security-opt "+option, why, without)
	}
	return p
}

// Options that a mount may have besides read-only.
var mountOptions = []string{"", "bind", "rbind", "nosuid", "nodev", "noexec", "suid", "dev", "exec"}

func mountObstacles(h host, mounts []mount) []engine.Problem {
	p := problems{}
	const plainly = "mount it without that"
	for _, m := range mounts {
		p.add(m.Type != "volume" && m.Type != "bind", "mount at "+m.Destination,
			"mounts of type "+m.Type+" are not moved", plainly)
		p.add(m.Type == "volume" && m.Driver != "" && m.Driver != localDriver, "volume "+m.Name,
			"only volumes of the local driver move", plainly)
		p.add(!slices.Contains([]string{"", "private", "rprivate"}, m.Propagation), "mount at "+m.Destination,
			"propagation "+m.Propagation+" is not moved", plainly)
		for _, option := range m.Options {
			p.add(!slices.Contains(mountOptions, option), "mount at "+m.Destination,
				"option "+option+" is not moved", plainly)
		}
	}
	for path, options := range h.Tmpfs {
		for option := range strings.SplitSeq(options, ",") {
			name, _, _ := strings.Cut(option, "=")
			known := slices.Contains(append([]string{"rw", "ro", "rprivate", "private", "tmpcopyup",
				"notmpcopyup", "size", "mode"}, mountOptions...), name)
			p.add(!known, "--tmpfs "+path, "option "+option+" is not moved", plainly)
		}
	}
	return p
}
