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

// pluginDirs returns the directories of plugins: CNI's own, which containerd's programs use, and those of
// distributions' packages.
func pluginDirs() []string { return []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"} }

// missingPlugins lists the plugins of a list that are missing on this node. Without them, nothing would
// connect or disconnect a container.
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

// pluginExec runs plugins as CNI itself does (pkg/invoke, RawExec), but also ends the programs that a
// plugin has started: plugin bridge runs host-local, and firewall runs iptables. Such a program may wait
// for others, and would do its work after everything has been disconnected.
type pluginExec struct {
	invoke.RawExec
	version.PluginDecoder
}

// pluginEnds is how long the pipes of a stopped plugin are read, because programs that it has started in
// their own process groups may hold the pipes.
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
	// it has succeeded, but a program that it has left behind holds its pipes
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
