package containerd

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd/nerdctl"
	"github.com/godwit/godwit/internal/engine/contentstore"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
)

// Obstacles lists the parts of a container's configuration that cannot move.
func (a *adapter) Obstacles(_ context.Context, found oci.Container) []engine.Problem {
	t, p := native(found), problems{}
	p.add(t.container.GetRuntime().GetName() != runtimeName, "runtime "+t.container.GetRuntime().GetName(),
		"only "+runtimeName+" is supported", without)
	settings, err := runtimeOptions(t)
	if err != nil {
		p.add(true, "runtime of container "+nameOf(found.ID), err.Error(), without)
	} else {
		binary := filepath.Base(settings.GetBinaryName())
		p.add(!slices.Contains([]string{".", "runc", shim.Program}, binary), "runtime "+binary,
			"only containers of runc can be restored", without)
		p.add(settings.GetRoot() != "" || settings.GetShimCgroup() != "", "options of its runtime",
			"they are this node's", without)
	}
	p.add(t.container.GetSnapshotter() != snapshotter, "snapshotter "+t.container.GetSnapshotter(),
		"only overlayfs is supported", without)
	_, known := ctrExtension(t.container.GetExtensions())
	p.add(!known, "extensions of the container", "their meaning to other programs is unknown", without)
	_, networks := a.networkOf(t)
	nerdctls, spec := t.nerdctlObstacles()
	return slices.Concat(p, networks, a.disconnectable(found.ID), nerdctls,
		restartObstacles(t.container.GetLabels()), obstacles(spec, t.namespace, t.container.GetID()))
}

// obstacles lists the obstacles that both nodes check: the source, so that the user learns early, and the
// target, because it would make the container.
func obstacles(spec specs.Spec, namespace, id string) []engine.Problem {
	p := problems{}
	p.add(spec.Process.Terminal, "--tty", "no client at the target would have its terminal", without)
	p.add(spec.Hooks != nil, "hooks of the container",
		"their effects on this node, such as CNI networks, are not moved", connectOtherwise)
	groups := []string{"", filepath.Join("/", namespace, id)}
	p.add(!slices.Contains(groups, spec.Linux.CgroupsPath), "control group "+spec.Linux.CgroupsPath,
		"it is not one of the container's own", without)
	p.add(spec.Root.Path != "rootfs", "root file system "+spec.Root.Path, "only containers of images move",
		without)
	for _, n := range spec.Linux.Namespaces {
		p.add(n.Path != "" || n.Type == specs.UserNamespace || n.Type == specs.TimeNamespace,
			string(n.Type)+" namespace "+n.Path, "it is not one of the container's own", without)
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace,
		specs.UTSNamespace, specs.MountNamespace} {
		p.add(!hasNamespace(spec, kind), "no "+string(kind)+" namespace",
			"the container uses the node's, which cannot move with it", without)
	}
	for name := range spec.Annotations { // ctr makes an annotation of each label
		p.add(slices.ContainsFunc([]string{"org.criu.", "org.systemd.", "run.oci.", "io."},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) }),
			"annotation "+name, "its effects on the runtime are not moved", without)
	}
	p = append(append(p, privilegeObstacles(spec)...), mountObstacles(spec)...)
	p.add(len(p) == 0 && !same(spec), "settings in its OCI specification",
		"not all of them are moved: only what ctr run makes without further flags", without)
	return p
}

// devices are the devices that any container may use: null, zero, full, random, urandom, tty, console,
// ptmx, and its own terminals (major and minor numbers; -1: any).
var devices = [][2]int64{{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 1}, {5, 2}, {136, -1}}

// privilegeObstacles lists settings that weaken the node's protection against the container. The target
// cannot know who has allowed them at the source.
func privilegeObstacles(spec specs.Spec) []engine.Problem {
	p := problems{}
	const why = "it weakens the isolation of the container from its node"
	ownNetwork := hasNamespace(spec, specs.NetworkNamespace)
	if c := spec.Process.Capabilities; c != nil {
		all := slices.Concat(c.Bounding, c.Effective, c.Inheritable, c.Permitted, c.Ambient)
		slices.Sort(all)
		for _, name := range slices.Compact(all) {
			p.add(!oci.HarmlessCapability(name, ownNetwork), "capability "+name, why, without)
		}
	}
	lacks := func(list, wanted []string) bool {
		return slices.ContainsFunc(wanted, func(name string) bool { return !slices.Contains(list, name) })
	}
	p.add(lacks(spec.Linux.MaskedPaths, oci.MaskedPaths) ||
		lacks(spec.Linux.ReadonlyPaths, oci.ReadonlyPaths), "--privileged", why, without)
	rules := []specs.LinuxDeviceCgroup{}
	if spec.Linux.Resources != nil {
		rules = spec.Linux.Resources.Devices
	}
	p.add(len(rules) == 0 || rules[0].Allow || rules[0].Major != nil || rules[0].Access != "rwm",
		"no device limits", why, without)
	for _, rule := range rules {
		p.add(rule.Allow && !harmlessDevice(rule), "device "+deviceName(rule), why, without)
	}
	return p
}

func harmlessDevice(rule specs.LinuxDeviceCgroup) bool {
	return rule.Type == "c" && rule.Major != nil && slices.ContainsFunc(devices, func(one [2]int64) bool {
		return *rule.Major == one[0] && (one[1] < 0 || rule.Minor != nil && *rule.Minor == one[1])
	})
}

func deviceName(rule specs.LinuxDeviceCgroup) string {
	number := func(n *int64) string {
		if n == nil {
			return "*"
		}
		return fmt.Sprint(*n)
	}
	return rule.Type + " " + number(rule.Major) + ":" + number(rule.Minor)
}

// Options that a bind mount may have, and a mount of a kernel file system.
var (
	bindOptions   = []string{"bind", "rbind", "ro", "rw", "nosuid", "nodev", "noexec", "private", "rprivate"}
	kernelOptions = []string{"ro", "rw", "nosuid", "nodev", "noexec", "private", "rprivate", "strictatime",
		"relatime", "noatime", "newinstance"}
	kernelValues = []string{"size", "mode", "ptmxmode", "uid", "gid", "nr_inodes"} // NAME=number
	valuePattern = regexp.MustCompile(`^[0-9]{1,19}[kmgKMG%]?$`)
)

// kernelPlaces are the paths where kernel file systems belong: masks that hide parts of them from a
// container work by path.
var kernelPlaces = map[string]string{
	"proc": "/proc", "sysfs": "/sys", "cgroup": "/sys/fs/cgroup", "mqueue": "/dev/mqueue",
	"devpts": "/dev/pts",
}

func mountObstacles(spec specs.Spec) []engine.Problem {
	p, taken := problems{}, map[string]bool{}
	for _, m := range spec.Mounts {
		what := "mount at " + m.Destination
		p.add(!isClean(m.Destination) || m.Destination == "/", what, "it is not a plain absolute path",
			"mount it at another place")
		p.add(taken[m.Destination], what, "something else is mounted there, too", without)
		p.add((m.Type != "proc" || bound(m)) && engine.Within(m.Destination, "/proc"), what,
			"mounts in /proc can weaken the isolation of the container", without)
		taken[m.Destination] = true
		p.add(slices.Contains(m.Options, "ro") && slices.Contains(m.Options, "rw"), what,
			"its options include both ro and rw", "mount it with only one of them")
		if bound(m) {
			p.add(!isClean(m.Source), what, "its source "+m.Source+" is not a plain absolute path",
				"name it without . and .. and a slash at the end")
			for _, option := range m.Options {
				p.add(!slices.Contains(bindOptions, option), what, "option "+option+" is not moved",
					"mount it without that")
			}
			continue
		}
		p.add(m.Type != "tmpfs" && kernelPlaces[m.Type] == "", what,
			"mounts of type "+m.Type+" are not moved", without)
		p.add(kernelPlaces[m.Type] != "" && kernelPlaces[m.Type] != m.Destination, what,
			"a file system of type "+m.Type+" belongs at "+kernelPlaces[m.Type], without)
		p.add((m.Type == "sysfs" || m.Type == "cgroup") && !slices.Contains(m.Options, "ro"), what,
			"it is writable", without)
		for _, option := range m.Options {
			p.add(!kernelOption(option), what, "option "+option+" is not moved", "mount it without that")
		}
	}
	return p
}

func kernelOption(option string) bool {
	name, value, is := strings.Cut(option, "=")
	if !is {
		return slices.Contains(kernelOptions, option)
	}
	return slices.Contains(kernelValues, name) && valuePattern.MatchString(value)
}

// isClean requires a path to lead where it seems to lead: runc gets the path as it is.
func isClean(name string) bool { return path.IsAbs(name) && path.Clean(name) == name }

// Reserve lists the obstacles to making this container here.
func (a *adapter) Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	x, err := decode(d)
	if err != nil {
		return nil, err
	}
	p := problems(obstacles(x.Spec, x.Namespace, x.ID))
	p = append(append(p, restartObstacles(d.Labels)...), a.runtimeObstacles()...)
	p = append(p, reserveNerdctl(ctx, d, x)...)
	told, err := a.version.Version(ctx, &emptypb.Empty{})
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its version: %w", err)
	}
	p = append(p, engine.TooOld(Name, told.GetVersion(), oldest)...)
	if _, err := a.Find(ctx, engineID(x.Namespace, x.ID)); err == nil {
		p.add(true, "id "+x.ID+" in namespace "+x.Namespace+" of containerd",
			"a container on this node has it", "remove that container")
	}
	taken, err := contentstore.HasSnapshot(ctx, a.snapshots, x.Namespace, x.ID)
	if err != nil {
		return nil, err
	}
	p.add(taken, "snapshot "+x.ID+" in namespace "+x.Namespace+" of containerd", "another container or "+
		"program owns it",
		"ctr -n "+x.Namespace+" snapshots rm "+x.ID)
	for _, v := range d.Volumes {
		if problem, is := oci.BindObstacle(v, a.Title()); is {
			p = append(p, problem)
		}
	}
	found, err := networkObstacles(d.Network, listsOf(x.Namespace, d.Labels))
	if err != nil {
		return nil, err
	}
	p = append(p, found...)
	here, err := contentstore.HasSnapshot(ctx, a.snapshots, x.Namespace, x.Chain)
	p.add(err == nil && !here && len(d.Layers) == 0, "image "+d.Image,
		"this node lacks the image, and at the source no image of that name has the container's layers "+
			"any more",
		"ctr -n "+x.Namespace+" images pull it here, or export and import it")
	return p, err
}

func (a *adapter) runtimeObstacles() []engine.Problem {
	if _, err := a.runtimePath(); err != nil {
		return []engine.Problem{{What: shim.Program, Why: "it is not set up: " + err.Error(),
			Remedy: "godwit engine setup containerd"}}
	}
	return nil
}

// Readiness checks the containerd of this node, for this program. Error: engine.ErrAway.
func Readiness(ctx context.Context, executable string) (engine.Readiness, error) {
	ready := engine.Readiness{Title: Name}
	a, err := newAdapter(DefaultSocket)
	if err == nil {
		err = a.Away()
	}
	if err != nil {
		return ready, err
	}
	a.executable = executable
	told, err := a.version.Version(ctx, &emptypb.Empty{})
	ready.Version = told.GetVersion()
	tooOld := engine.TooOld(Name, ready.Version, oldest)
	ready.Problems = slices.Concat(tooOld, a.runtimeObstacles(), routedProblems())
	if _, missing := nerdctl.Find(); missing == nil { // a node without nerdctl does not need it
		ready.Problems = append(ready.Problems, nerdctl.Readiness(ctx)...)
	}
	return ready, err
}
