package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
)

// pluginDirs are where plugins are: of CNI itself, which containerd's programs look for, and of
// distributions' packages.
func pluginDirs() []string { return []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"} }

// missingPlugins says which ones of a list are not on this node: there would be nobody to connect a
// container, or to take it away.
func missingPlugins(list *libcni.NetworkConfigList) []engine.Problem {
	var names []string
	for _, plugin := range list.Plugins {
		for _, name := range []string{plugin.Network.Type, plugin.Network.IPAM.Type} {
			if _, err := invoke.FindInPath(name, pluginDirs()); name != "" && err != nil &&
				!slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	p := problems{}
	p.add(len(names) > 0, "plugins of CNI: "+strings.Join(names, ", "),
		"they are in none of "+strings.Join(pluginDirs(), ", "),
		"install package containernetworking-plugins on this node")
	return p
}

// pluginExec runs plugins as CNI does by itself (pkg/invoke, RawExec), but ends with one also what
// that one has started: plugin bridge has host-local run, and firewall iptables, which may wait for
// others, and would do what they wait for after all has been taken away.
type pluginExec struct {
	invoke.RawExec
	version.PluginDecoder
}

// pluginEnds is how long a plugin's pipes are read that has been ended: what it has started in a
// group of its own may have them.
const pluginEnds = time.Second

// ExecPlugin implements invoke.Exec.
func (*pluginExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environment []string) ([]byte,
	error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environment, bytes.NewReader(stdin), &stdout, &stderr
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, pluginEnds
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	err := cmd.Run()
	// it has done well, but what it has left behind holds its pipes
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("plugin %s has not ended: %w", filepath.Base(path), ctx.Err())
	}
	said := &types.Error{}
	if json.Unmarshal(stdout.Bytes(), said) == nil && said.Msg != "" {
		return nil, said
	}
	return nil, fmt.Errorf("plugin %s: %w: %s", filepath.Base(path), err,
		bytes.TrimSpace(append(stdout.Bytes(), stderr.Bytes()...)))
}
