package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// lxcPlace is LXC's directory of containers, in a node. Each node has its own: labs do not use the
// machine's.
const lxcPlace = "/var/lib/lxc"

// lxcData is where LXC has its templates and its own configurations.
const lxcData = "/usr/share/lxc"

// lxcConfig is the configuration of a movable container with a given, routed address, and without a
// console.
const lxcConfig = `lxc.net.0.type = veth
lxc.net.0.veth.mode = router
lxc.net.0.flags = up
lxc.net.0.mtu = 1390
lxc.net.0.ipv4.address = %s/32
lxc.net.0.ipv4.gateway = 169.254.1.1
lxc.console.path = none
lxc.start.auto = 1
`

// PrepareLXC gives a node its own directory for containers of LXC, which has no daemon, and the files that
// belong to the node's LXC.
func (e Engines) PrepareLXC(ctx context.Context, node string) error {
	const own = nodeStateDirectory + "/lxc-containers"
	script := "set -e; mkdir -p " + own + " " + lxcPlace + "; mount --bind " + own + " " + lxcPlace
	for _, prefix := range enginePrefixes(node) {
		if data := prefix + lxcData; isDirectory(data) {
			script += "; mount --bind " + data + " " + lxcData
		}
	}
	if _, err := e.lab.Exec(ctx, node, "sh", "-c", script); err != nil {
		return fmt.Errorf("place for containers of LXC on node %s: %w", node, err)
	}
	return nil
}

// lxcSystem is the configuration of a container with its own root file system, as in LXC's templates for
// distributions.
const lxcSystem = `lxc.include = %s/config/common.conf
lxc.uts.name = %s
lxc.rootfs.path = dir:%s/%[2]s/rootfs
lxc.tty.max = 0
`

// CreateLXCSystem makes an LXC container on a node that uses no files of the machine; fill makes its root
// file system in a directory. The container is not started.
func (e Engines) CreateLXCSystem(node, name, address string, fill func(directory string) error) error {
	root, err := e.lab.Root(node)
	if err != nil {
		return err
	}
	directory := filepath.Join(root, lxcPlace, name)
	files := filepath.Join(directory, "rootfs")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return err
	}
	if err := fill(files); err != nil {
		return err
	}
	written := fmt.Sprintf(lxcSystem, lxcData, name, lxcPlace) + fmt.Sprintf(lxcConfig, address)
	return os.WriteFile(filepath.Join(directory, "config"), []byte(written), 0o644)
}

// CreateLXC makes an LXC container on a node, from its busybox template, whose libraries are the machine's.
// The container has no terminals, these additional settings, and an init that runs inittab. CreateLXC
// returns the container's directory on the machine, with its configuration, and its files in rootfs. The
// container is not started.
func (e Engines) CreateLXC(ctx context.Context, node, name, address, inittab string,
	settings ...string) (directory string, err error) {
	root, err := e.lab.Root(node)
	if err != nil {
		return "", err
	}
	written := fmt.Sprintf(lxcConfig, address) + strings.Join(append(settings, ""), "\n")
	temporary := filepath.Join("/tmp", name+".conf")
	if err := os.WriteFile(filepath.Join(root, temporary), []byte(written), 0o644); err != nil {
		return "", err
	}
	if _, err := e.lab.Exec(ctx, node, "lxc-create", "-n", name, "-t", "busybox", "-f",
		temporary); err != nil {
		return "", fmt.Errorf("container %s of LXC on node %s: %w", name, node, err)
	}
	directory = filepath.Join(root, lxcPlace, name)
	config := filepath.Join(directory, "config")
	made, err := os.ReadFile(config)
	if err != nil {
		return "", err
	}
	without := strings.Replace(string(made), "lxc.tty.max = 5", "lxc.tty.max = 0", 1)
	return directory, errors.Join(os.WriteFile(config, []byte(without), 0o644),
		os.WriteFile(filepath.Join(directory, "rootfs/etc/inittab"), []byte(inittab), 0o644))
}
