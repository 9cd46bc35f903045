package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ownSettings are the machine's directories with settings of container engines. A node has its own copies:
// changes in a node stay there, and disappear with it.
func ownSettings() []string {
	return []string{"/etc/docker", "/etc/containers", "/usr/share/containers", "/etc/cni", pluginHome}
}

// pluginHome is where programs look for plugins of CNI, and packagedPlugins where a package has them, which
// not all of these programs know.
const (
	pluginHome      = "/opt/cni"
	packagedPlugins = "/usr/lib/cni"
)

// ownState is where programs without a daemon keep their state of containers: plugins of CNI the assigned
// addresses, nerdctl its names, logs and hosts files. A node's is empty at first.
func ownState() []string { return []string{"/var/lib/cni", "/var/lib/nerdctl"} }

// settingsDirectory is where a node keeps its copies.
const settingsDirectory = nodeStateDirectory + "/settings"

// mountSettings gives a node its copies. A node that comes up again keeps its old ones.
func mountSettings(spec initSpec) error {
	if !spec.Node {
		return nil
	}
	for _, dir := range append(ownSettings(), ownState()...) {
		if !isDirectory(dir) { // it could not be made
			continue
		}
		own := filepath.Join(settingsDirectory, dir)
		if !isDirectory(own) {
			if err := os.MkdirAll(own, 0o755); err != nil {
				return err
			}
			if err := copySettings(dir, own); err != nil {
				return err
			}
		}
		if err := mount(own, dir, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

func copySettings(from, to string) error {
	if slices.Contains(ownState(), from) {
		return nil
	}
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	if from == pluginHome {
		if err := os.Symlink(packagedPlugins, filepath.Join(to, "bin")); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// makeMountPoints creates missing directories to mount a node's own files over, and remembers the ones that
// it made.
func makeMountPoints() error {
	for _, dir := range slices.Concat(ownSettings(), ownState(), []string{nodeStateDirectory}) {
		if isDirectory(dir) {
			continue
		}
		made, err := os.ReadFile(createdMark)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(createdMark, append(made, dir+"\n"...), 0o600); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil &&
			(dir == nodeStateDirectory || !errors.Is(err, unix.EROFS)) {
			return err // if this fails, nodes cannot change settings there either
		}
	}
	return nil
}

// removeMountPoints removes the directories that makeMountPoints made.
func removeMountPoints() error {
	made, err := os.ReadFile(createdMark)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for dir := range strings.Lines(string(made)) {
		_ = os.Remove(strings.TrimSpace(dir)) // fails if they are used
	}
	return os.Remove(createdMark)
}
