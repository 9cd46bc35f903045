package lxc

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// extra is this engine's part of a definition (Definition.Engine).
type extra struct {
	Config string `json:"config"` // the container's configuration file
}

func encodeExtra(x extra) json.RawMessage {
	data, err := json.Marshal(x)
	if err != nil { // strings always encode
		return nil
	}
	return data
}

// validate refuses a definition that this engine could not make, or that is harmful, and returns its
// configuration: as written, and with its includes.
func validate(d engine.Definition) (written, all []setting, err error) {
	fail := func(err error) ([]setting, []setting, error) {
		return nil, nil, fmt.Errorf("container definition is not valid: %w", err)
	}
	switch {
	case d.EngineName != Name || !idPattern.MatchString(d.ID):
		return fail(fmt.Errorf("engine %.40q, id %.80q", d.EngineName, d.ID))
	case !namePattern.MatchString(d.Name):
		return fail(fmt.Errorf("name %.80q: must begin with a letter or digit and have at most 63 of a-z "+
			"A-Z 0-9 _ . -", d.Name))
	case len(d.Volumes) > 0:
		return fail(fmt.Errorf("%d volumes: LXC containers have none", len(d.Volumes)))
	}
	if d.Network.Bridge != "" {
		return fail(fmt.Errorf("network %.40q: its interface is on no bridge", d.Network.Bridge))
	}
	if d.Network.MAC != "" {
		if _, err := net.ParseMAC(d.Network.MAC); err != nil {
			return fail(fmt.Errorf("hardware address %.40q: %w", d.Network.MAC, err))
		}
	}
	var x extra
	if err := json.Unmarshal(d.Engine, &x); err != nil {
		return fail(err)
	}
	if written, err = parseConfig(x.Config); err == nil {
		all, err = expand(written)
	}
	if err != nil {
		return fail(err)
	}
	network, err := networkOf(all)
	if err == nil && network.Address != d.Network.Address {
		err = fmt.Errorf("its configuration has the address %s, and not %s", network.Address,
			d.Network.Address)
	}
	if err != nil {
		return fail(err)
	}
	return written, all, nil
}

// memoryLimit returns the container's memory limit in bytes; 0: none, or not a number.
func memoryLimit(settings []setting) int64 {
	text := last(settings, "lxc.cgroup2.memory.max")
	if one := last(settings, "lxc.cgroup.memory.limit_in_bytes"); one != "" {
		text = one
	}
	units := map[byte]int64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}
	text = strings.ToUpper(strings.TrimSpace(text))
	unit := int64(1)
	if text != "" && units[text[len(text)-1]] != 0 {
		unit, text = units[text[len(text)-1]], text[:len(text)-1]
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil || limit < 0 || limit > (1<<62)/unit {
		return 0
	}
	return limit * unit
}

// cgroupProblems lists cgroup settings that this version of LXC, or this node, does not support.
func cgroupProblems(settings []setting, version string, v1 bool) []engine.Problem {
	if !engine.Since(version, unifiedOnly) {
		return devicesProblem(settings, v1)
	}
	problems := devicesProblem(settings, false)
	for _, one := range settings {
		if strings.HasPrefix(one.key, "lxc.cgroup.") {
			problems = append(problems, engine.Problem{
				What: fmt.Sprintf("%.60s = %.80s", one.key, one.value),
				Why: "LXC " + version +
					" does not support settings of cgroup version 1, and would not start a container " +
					"that has them",
				Remedy: "move it to a node with LXC before " + unifiedOnly +
					", or put settings of lxc.cgroup2 in its place, which limit where version 2 has the " +
					"controllers",
			})
		}
	}
	return problems
}

// devicesProblem returns the objection to limits of devices on this node. With version 2 they are a program
// that only lxc-start makes, so a container would have all devices here.
func devicesProblem(settings []setting, v1 bool) []engine.Problem {
	var some, writable bool
	for _, one := range settings {
		isV1 := strings.HasPrefix(one.key, "lxc.cgroup.devices.")
		writable = writable || isV1
		some = some || isV1 || strings.HasPrefix(one.key, "lxc.cgroup2.devices.")
	}
	if !some || v1 && writable {
		return nil
	}
	return []engine.Problem{{
		What: "limits of devices (lxc.cgroup2.devices)",
		Why:  "lxc-checkpoint does not set them on this node: the container would have all devices",
		Remedy: "move it to a node with the devices controller of cgroup version 1 and LXC before " +
			unifiedOnly + ", and give it lxc.cgroup.devices too",
	}}
}

// seal makes the container's read-only directories of the node really read-only. CRIU skips directories out
// of which it has mounted another part of the same file system before: where /lib is a link into /usr, the
// container's root could write to the node's.
func seal(settings []setting, group *cgroup.Cgroup) error {
	pids, err := group.Procs()
	if err != nil {
		return err
	}
	for _, pid := range pids { // the group also has the restoring processes
		if process, err := kernel.ReadProcess(pid); err == nil && process.NamespaceID == 1 {
			return kernel.SealMounts(pid, sealed(settings))
		}
	}
	return errors.New("its first process is missing")
}

// sealed returns the paths of these directories in the container.
func sealed(settings []setting) (paths []string) {
	for _, one := range settings {
		fields := strings.Fields(one.value)
		if one.key != "lxc.mount.entry" || len(fields) < 4 {
			continue
		}
		if options := strings.Split(fields[3], ","); slices.Contains(options, "bind") && readsOnly(options) {
			paths = append(paths, filepath.Join("/", fields[1]))
		}
	}
	return paths
}

// limit writes the settings of the container's cgroup, as lxc-start does and `lxc-checkpoint -r` does not.
// Like LXC, it skips settings that no hierarchy of this node has. It never skips devices: see
// devicesProblem.
func limit(settings []setting, group *cgroup.Cgroup) error {
	for _, one := range settings {
		if !limitKey.MatchString(one.key) {
			continue
		}
		file, v1 := strings.CutPrefix(one.key, "lxc.cgroup.")
		if !v1 {
			file = strings.TrimPrefix(one.key, "lxc.cgroup2.")
		}
		for _, dir := range group.Dirs() {
			path := filepath.Join(dir, file)
			if durable.Exists(filepath.Join(dir, "cgroup.controllers")) == v1 || !durable.Exists(path) {
				continue
			}
			if err := os.WriteFile(path, []byte(one.value), 0); err != nil {
				return fmt.Errorf("%s = %s: %w", one.key, one.value, err)
			}
		}
	}
	return nil
}

// settingsOf returns a container's configuration as written, and with its includes.
func settingsOf(ctr engine.Container) (written, all []setting, err error) {
	var x extra
	if err := json.Unmarshal(ctr.Definition.Engine, &x); err != nil {
		return nil, nil, err
	}
	if written, err = parseConfig(x.Config); err == nil {
		all, err = expand(written)
	}
	return written, all, err
}

// rootOf returns the path of a container's root file system.
func rootOf(ctr engine.Container) (string, error) {
	_, all, err := settingsOf(ctr)
	if err != nil {
		return "", err
	}
	root := strings.TrimPrefix(last(all, "lxc.rootfs.path"), "dir:")
	if !filepath.IsAbs(root) {
		return "", fmt.Errorf("LXC container %s: %w: its root file system is %.80q, and not a directory",
			ctr.Definition.Name, errNotMovable, root)
	}
	return root, nil
}
