package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// lxcPlace is where LXC has its containers, as a node sees it. Each node has one of its own: the
// machine's is not for labs.
const lxcPlace = "/var/lib/lxc"

// lxcData is where LXC has its templates and the configurations that it comes with.
const lxcData = "/usr/share/lxc"

// lxcConfig is that of a container which can move, with the address that it is given: a routed one,
// and no console.
const lxcConfig = `lxc.net.0.type = veth
lxc.net.0.veth.mode = router
lxc.net.0.flags = up
lxc.net.0.mtu = 1390
lxc.net.0.ipv4.address = %s/32
lxc.net.0.ipv4.gateway = 169.254.1.1
lxc.console.path = none
lxc.start.auto = 1
`

// PrepareLXC gives a node a place of its own for containers of LXC, which has no daemon, and what
// belongs to the LXC that it has.
func (l *Lab) PrepareLXC(ctx context.Context, node string) error {
	const own = nodeStateDirectory + "/lxc-containers"
	script := "set -e; mkdir -p " + own + " " + lxcPlace + "; mount --bind " + own + " " + lxcPlace
	for _, prefix := range enginePrefixes(node) {
		if data := prefix + lxcData; isDirectory(data) {
			script += "; mount --bind " + data + " " + lxcData
		}
	}
	if _, err := l.Exec(ctx, node, "sh", "-c", script); err != nil {
		return fmt.Errorf("place for containers of LXC on node %s: %w", node, err)
	}
	return nil
}

// lxcSystem is that of a container with a root file system of its own, as LXC's templates for
// distributions have it.
const lxcSystem = `lxc.include = %s/config/common.conf
lxc.uts.name = %s
lxc.rootfs.path = dir:%s/%[2]s/rootfs
lxc.tty.max = 0
`

// CreateLXCSystem makes a container of LXC on a node that has nothing of the machine's; fill makes
// its root file system in a directory. It is not started.
func (l *Lab) CreateLXCSystem(node, name, address string, fill func(directory string) error) error {
	root, err := l.Root(node)
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

// CreateLXC makes a container of LXC on a node, from its busybox template, of which the libraries
// are the machine's: without terminals, with these settings besides, and an init that does what is
// in inittab. What is returned is where it is on the machine: its configuration, and its files in
// rootfs. It is not started.
func (l *Lab) CreateLXC(ctx context.Context, node, name, address, inittab string,
	settings ...string) (directory string, err error) {
	root, err := l.Root(node)
	if err != nil {
		return "", err
	}
	written := fmt.Sprintf(lxcConfig, address) + strings.Join(append(settings, ""), "\n")
	temporary := filepath.Join("/tmp", name+".conf")
	if err := os.WriteFile(filepath.Join(root, temporary), []byte(written), 0o644); err != nil {
		return "", err
	}
	if _, err := l.Exec(ctx, node, "lxc-create", "-n", name, "-t", "busybox", "-f", temporary); err != nil {
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
