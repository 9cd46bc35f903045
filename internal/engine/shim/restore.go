package shim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/mounts"
)

// handler answers the engine's calls that concern a container with a restore directory.
type handler struct{ Dir }

// restore makes runc restore the container in place of creating it. The restore waits in the restore proxy
// until the agent lets it continue.
func (d handler) restore(c call, job Job) (int, error) {
	if exists(job.Record) {
		return 0, errors.New("this container has already arrived and run here, but the agent has not " +
			"recorded that: start the agent first")
	}
	if err := d.makeBundle(c.flag("--bundle"), c.id()); err != nil {
		return 0, err
	}
	if err := d.noteState(stateOf(c)); err != nil {
		return 0, err
	}
	args := append([]string{}, c.before...)
	// otherwise runc's warnings would appear as the container's output: Podman passes no log to a runtime
	// that it does not know
	if (call{after: c.before}).flag("--log") == "" {
		args = append(args, "--log", d.runcLog())
	}
	args = append(args, "restore", "--detach", "--bundle", d.bundle(), "--image-path", d.Images(),
		"--work-path", d.CRIU(), "--tcp-established", "--file-locks", "--manage-cgroups-mode", "ignore")
	for _, name := range []string{"--pid-file", "--console-socket"} {
		if value := c.flag(name); value != "" && !(job.Early && name == "--pid-file") {
			args = append(args, name, value)
		}
	}
	if c.has("--no-pivot") {
		args = append(args, "--no-pivot")
	}
	args = append(args, c.id())
	if job.Early {
		return 0, d.createEarly(job, args, c.flag("--pid-file"))
	}
	return become(job.Runc, args, job.Env)
}

// stateOf returns the directory in which runc, called with these flags, keeps its state of a container
// (runc(8), --root).
func stateOf(c call) string {
	return filepath.Join(cmp.Or((call{after: c.before}).flag("--root"), "/run/runc"), c.id())
}

// makeBundle makes the bundle for runc's restore from the engine's.
func (d handler) makeBundle(engines, id string) error {
	spec, err := readBundle(engines)
	if err != nil {
		return err
	}
	// runc makes mount points in the root file system, which come with the writable layer. So it gets an
	// empty one; CRIU gets the real one in the end.
	if err := errors.Join(mounts.Unmount(d.scratch()), mounts.Scratch(d.scratch())); err != nil {
		return err
	}
	spec.Root.Path = d.scratch()
	for i, m := range spec.Mounts {
		if source, err := filepath.EvalSymlinks(m.Source); err == nil && filepath.IsAbs(m.Source) {
			spec.Mounts[i].Source = source // CRIU does not follow them
		}
	}
	if err := d.makeMemories(spec); err != nil {
		return err
	}
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	unguard(spec.Hooks)
	// no configuration file of the node changes CRIU's options
	spec.Annotations["org.criu.config"] = ""
	if err := d.makeNetwork(spec, engines, id); err != nil {
		return err
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.bundle(), 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.bundle(), "config.json"), data, 0o600)
}

// GuardVariable is a variable of hooks that must not run at a restore: hooks that keep an engine from
// making processes anew, and hooks that would make a network which another program makes.
const GuardVariable = "GODWIT_GUARD"

func unguard(hooks *specs.Hooks) {
	if hooks == nil {
		return
	}
	hooks.CreateRuntime = slices.DeleteFunc(hooks.CreateRuntime, func(hook specs.Hook) bool {
		return slices.ContainsFunc(hook.Env,
			func(variable string) bool { return strings.HasPrefix(variable, GuardVariable+"=") })
	})
}

// readBundle reads the specification in a bundle.
func readBundle(dir string) (*specs.Spec, error) {
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("decode bundle %s: %w", dir, err)
	}
	if spec.Root == nil || spec.Linux == nil {
		return nil, fmt.Errorf("bundle %s has no root file system, or is not for Linux", dir)
	}
	return &spec, nil
}

// makeNetwork makes the network namespace that runc would make, and runs the engine's hooks that set it up,
// now: at the restore this would be in the freeze. An idle process stands in for the container's first one.
func (d handler) makeNetwork(spec *specs.Spec, bundle, id string) error {
	own := -1
	for i, n := range spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace && n.Path == "" {
			own = i
		}
	}
	if own < 0 {
		return nil
	}
	holder, err := startHolder()
	if err != nil {
		return err
	}
	defer holder.end()
	if err := pin(holder.namespace(), d.Network()); err != nil {
		return err
	}
	if err := checkpoint.Loopback(d.Network()); err != nil {
		return err
	}
	spec.Linux.Namespaces[own].Path = d.Network()
	return runHooks(spec, specs.State{
		Version: spec.Version, ID: id, Status: specs.StateCreated, Pid: holder.cmd.Process.Pid,
		Bundle: bundle, Annotations: spec.Annotations,
	})
}

// runHooks runs an engine's hooks for existing namespaces, and removes them from the specification.
func runHooks(spec *specs.Spec, state specs.State) error {
	if spec.Hooks == nil {
		return nil
	}
	told, err := json.Marshal(state)
	if err != nil {
		return err
	}
	hooks := append(append([]specs.Hook{}, spec.Hooks.Prestart...), //nolint:staticcheck // Docker uses it
		spec.Hooks.CreateRuntime...)
	for _, hook := range hooks {
		var output bytes.Buffer
		cmd := exec.Cmd{Path: hook.Path, Args: hook.Args, Env: hook.Env, Stdin: bytes.NewReader(told),
			Stdout: &output, Stderr: &output}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("hook %s of the engine: %w: %s", hook.Path,
				err, bytes.TrimSpace(output.Bytes()))
		}
	}
	spec.Hooks.Prestart, spec.Hooks.CreateRuntime = nil, nil //nolint:staticcheck // Docker uses it
	return nil
}

// HolderCommand is the hidden command of this program that stands in for a container's first process while
// the container's network is made: see Hold.
const HolderCommand = "network-holder"

// Hold keeps the namespaces of this process for as long as its standard input is open.
func Hold() int {
	_, _ = io.Copy(io.Discard, os.Stdin) // only its end matters
	return 0
}

// holder is a process with a network namespace of its own.
type holder struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func startHolder() (*holder, error) {
	cmd := exec.Command("/proc/self/exe", HolderCommand)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return &holder{cmd, stdin}, nil
}

func (h *holder) namespace() string { return "/proc/" + strconv.Itoa(h.cmd.Process.Pid) + "/ns/net" }

func (h *holder) end() {
	_ = h.stdin.Close()
	_ = h.cmd.Wait() // it has nothing to report
}

// pin keeps a namespace at a path.
func pin(namespace, path string) error {
	if err := mounts.Unmount(path); err != nil {
		return err
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount(namespace, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("keep network namespace at %s: %w", path, err)
	}
	return nil
}
