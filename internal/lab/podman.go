package lab

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Podman's directories in a node: below the node's own files, because an overlay cannot have its layers in
// another overlay.
const (
	podmanData = nodeStateDirectory + "/podman"
	podmanHome = "/var/lib/containers"
)

// envRuntime names the OCI runtime of another Podman than the system's; runc is the default.
const envRuntime = "GODWIT_LAB_RUNTIME"

// podmanSettings is the directory of a node's own settings for Podman, in addition to the system's.
const podmanSettings = "/etc/containers/containers.conf.d"

// PreparePodman gives a node its own storage for Podman, which has no daemon.
func (e Engines) PreparePodman(ctx context.Context, node string) error {
	script := "set -e; mkdir -p " + podmanData + podmanHome + " " + podmanHome + "; mount --bind " +
		podmanData + podmanHome + " " + podmanHome
	_, err := e.lab.Exec(ctx, node, "sh", "-c", script)
	if err == nil {
		err = e.nameHelpers(node)
	}
	if err != nil {
		return fmt.Errorf("storage for Podman of node %s: %w", node, err)
	}
	return nil
}

// nameHelpers tells a Podman other than the system's where its helpers and runtimes are: it looks for them
// in PATH last.
func (e Engines) nameHelpers(node string) error {
	own := engineDirectories(node)
	if len(own) == 0 {
		return nil
	}
	within := slices.Concat(own, []string{"/usr/lib/podman", "/usr/libexec/podman", "/usr/bin"})
	named := func(name string) string {
		var paths []string
		for _, dir := range within {
			paths = append(paths, strconv.Quote(filepath.Join(dir, name)))
		}
		return "[" + strings.Join(paths, ", ") + "]"
	}
	settings := []string{
		"[engine]", "runtime = " + strconv.Quote(cmp.Or(os.Getenv(envRuntime), "runc")),
		"conmon_path = " + named("conmon"), "helper_binaries_dir = " + named(""),
		"[engine.runtimes]", "runc = " + named("runc"), "crun = " + named("crun"), "",
	}
	if os.Getenv(envCgroups) == "2" { // version 2 lacks controllers that version 1 has
		settings = append(settings, "[containers]", "pids_limit = 0", "")
	}
	root, err := e.lab.Root(node)
	if err != nil {
		return err
	}
	dir := filepath.Join(root, podmanSettings)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "10-lab.conf"), []byte(strings.Join(settings, "\n")), 0o644)
}
