package nerdctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/patience"
)

// Program is the name of nerdctl.
const Program = "nerdctl"

// logging is the argument that makes nerdctl take a log. containerd's shim derives it from the URI by which
// it starts nerdctl.
const logging = "_NERDCTL_INTERNAL_LOGGING"

// oldest is the first version with the files described here.
const oldest = "2.0"

// settings is nerdctl's configuration file on this node; elsewhere matches its settings that make nerdctl
// look in other places.
const settings = "/etc/nerdctl/nerdctl.toml"

var elsewhere = regexp.MustCompile(`(?m)^\s*(data_root|address|cni_netconfpath)\s*=.*$`)

// Find returns the path of nerdctl on this node.
func Find() (string, error) {
	for _, name := range []string{Program, "/usr/local/bin/" + Program, "/usr/bin/" + Program} {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("%s: %w", Program, exec.ErrNotFound)
}

var versionPattern = regexp.MustCompile(`version v?([0-9][0-9A-Za-z.+~-]*)`)

// Readiness lists the obstacles to containers of nerdctl coming to this node.
func Readiness(ctx context.Context) []engine.Problem {
	path, err := Find()
	if err != nil {
		return []engine.Problem{{What: Program, Why: "this node lacks nerdctl, which would write the " +
			"container's log and clean up after the container", Remedy: "install nerdctl"}}
	}
	ctx, cancel := patience.Question.For(ctx, Program, patience.Programs(Program))
	defer cancel()
	said, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		remedy := "reinstall nerdctl"
		if err = patience.Explain(ctx, err); errors.Is(err, context.DeadlineExceeded) {
			remedy = "try again when the node is less busy"
		}
		return []engine.Problem{{What: path, Why: "it does not report its version: " + err.Error(),
			Remedy: remedy}}
	}
	var found []engine.Problem
	// a self-built nerdctl may have no version
	if version := versionPattern.FindStringSubmatch(string(said)); version != nil {
		found = engine.TooOld(Program, version[1], oldest)
	}
	text, err := os.ReadFile(settings)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return append(found, engine.Problem{What: settings, Why: err.Error(), Remedy: "correct it"})
	}
	if line := elsewhere.Find(text); line != nil {
		found = append(found, engine.Problem{What: settings,
			Why: "nerdctl is configured with " + strings.TrimSpace(string(line)), Remedy: "remove that " +
				"setting on this node"})
	}
	return found
}

// LogURI returns the URI that makes the shim start nerdctl for a container's log.
func LogURI(program string, p Place) string {
	uri := url.URL{Scheme: "binary", Path: program, RawQuery: url.Values{logging: {p.Store()}}.Encode()}
	return uri.String()
}

// isLog reports whether a URI is nerdctl's own for this, wherever nerdctl is installed.
func isLog(text string, p Place) bool {
	uri, err := url.Parse(text)
	return err == nil && filepath.IsAbs(uri.Path) && text == LogURI(uri.Path, p)
}

const (
	created = "createRuntime"
	stopped = "postStop"
)

// HookObstacles requires the hooks of a container to be those by which nerdctl connects it and frees its
// name, and its log, including stdout, to which the shim writes, to be nerdctl's.
func HookObstacles(p Place, hooks *specs.Hooks, labels map[string]string, stdout string) []engine.Problem {
	var found []engine.Problem
	add := func(good bool, what, why, remedy string) {
		if !good {
			found = append(found, engine.Problem{What: what, Why: why, Remedy: remedy})
		}
	}
	add(hooks != nil && isHook(p, hooks.CreateRuntime, created) && isHook(p, hooks.Poststop, stopped) &&
		onlyThese(*hooks),
		"hooks of the container",
		"they differ from the hooks of nerdctl with default settings, and their effects on this node "+
			"are not moved",
		"start the container by nerdctl run with no global flag other than --namespace")
	add(isLog(labels[labelLog], p), "log "+labels[labelLog], "it is not the log of nerdctl with default "+
		"settings",
		remedy)
	add(stdout == labels[labelLog], "its output", "it goes to the program that started the container",
		"start it with nerdctl run --detach")
	return found
}

func onlyThese(hooks specs.Hooks) bool {
	//nolint:staticcheck // it may be used
	return len(hooks.Prestart) == 0 && len(hooks.CreateContainer) == 0 && len(hooks.StartContainer) == 0 &&
		len(hooks.Poststart) == 0
}

func isHook(p Place, hooks []specs.Hook, event string) bool {
	if len(hooks) != 1 || len(hooks[0].Args) < 4 || filepath.Base(hooks[0].Path) != Program {
		return false
	}
	args := hooks[0].Args[1:]
	end := len(args) - 3
	return slices.Equal(args[end:], []string{"internal", "oci-hook", event}) &&
		!slices.ContainsFunc(args[:end], func(flag string) bool { return flag != "--namespace="+p.Namespace })
}

// Hooks returns the hooks of an arriving container: this node's nerdctl, with only the arguments that it
// would use itself. variables are additional variables of the hook that connects a starting container.
func Hooks(program string, p Place, variables ...string) *specs.Hooks {
	hook := func(event string, variables ...string) specs.Hook {
		return specs.Hook{
			Path: program, Args: []string{program, "--namespace=" + p.Namespace, "internal", "oci-hook",
				event},
			Env: append([]string{"PATH=" + searchPath}, variables...),
		}
	}
	return &specs.Hooks{CreateRuntime: []specs.Hook{hook(created, variables...)},
		Poststop: []specs.Hook{hook(stopped)}}
}

// searchPath is where CNI's plugins look for iptables.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
