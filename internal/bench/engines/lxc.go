package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// lxc is the node's LXC, by its tools.
type lxc struct{ bed *testbed.Bed }

const (
	lxcPlace  = "/var/lib/lxc"
	lxcImages = testbed.BenchDir + "/lxc" // of lxc-checkpoint
)

// lxcSettings are required for a checkpoint of an LXC container, and run the program in place of an init.
const lxcSettings = `lxc.console.path = none
lxc.tty.max = 0
lxc.mount.auto = proc:mixed sys:mixed
lxc.uts.name = %s
lxc.rootfs.path = dir:%s
lxc.init.cmd = %s
`

const lxcConnected = `lxc.net.0.type = veth
lxc.net.0.veth.mode = router
lxc.net.0.flags = up
lxc.net.0.ipv4.address = %s/32
lxc.net.0.ipv4.gateway = 169.254.1.1
`

// address returns an address in the subnet of the first node, different for each workload: neighbours may
// still know the address of a removed container.
func (lxc) address(c outside) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 88, 1, byte(200 + c.port%50)})
}

func (lxc) name() string { return "lxc" }

func (l lxc) bringUp(ctx context.Context, node string) error {
	return l.bed.Lab.Engines().PrepareLXC(ctx, node)
}

func (lxc) connects() bool { return true }

// load does nothing at the target of Godwit's moves. For LXC's own way, it puts the files on both nodes.
func (l lxc) load(ctx context.Context, node, archive string, c outside) (string, error) {
	if c.connected && node != testbed.Nodes[0] {
		return archive, nil
	}
	root := filepath.Join(lxcPlace, c.name, "rootfs")
	command := slices.Clone(c.args)
	for i, word := range command {
		// LXC splits at spaces, whatever is quoted (split_init_cmd); Redis reads this as an empty word
		if word == "" {
			command[i] = `""`
		}
	}
	config := fmt.Sprintf(lxcSettings, c.name, root, strings.Join(command, " "))
	if c.connected {
		config += fmt.Sprintf(lxcConnected, l.address(c))
	} else {
		config += "lxc.net.0.type = empty\nlxc.net.0.flags = up\n"
	}
	if err := l.bed.Write(node, filepath.Join(filepath.Dir(root), "config"), []byte(config)); err != nil {
		return "", err
	}
	return archive, l.unpack(ctx, node, archive, root)
}

// unpack unpacks an image into a directory tree.
func (l lxc) unpack(ctx context.Context, node, archive, root string) error {
	out, err := l.bed.Exec(ctx, node, "tar", "--extract", "--to-stdout", "--file", archive, "manifest.json")
	if err != nil {
		return err
	}
	var manifest []struct{ Layers []string }
	if err := json.Unmarshal([]byte(out), &manifest); err != nil || len(manifest) != 1 {
		return errors.Join(fmt.Errorf("image %s: its manifest is %.200q", archive, out), err)
	}
	for _, layer := range manifest[0].Layers {
		const script = `mkdir --parents "$2" &&
			tar --extract --to-stdout --file "$0" "$1" | tar --extract --directory "$2"`
		if _, err := l.bed.Exec(ctx, node, "sh", "-c", script, archive, layer, root); err != nil {
			return err
		}
	}
	return nil
}

func (l lxc) run(ctx context.Context, node string, c outside) error {
	_, err := l.bed.Exec(ctx, node, "lxc-start", "--name", c.name)
	return err
}

func (l lxc) pid(ctx context.Context, node string, c outside) (int, error) {
	out, err := l.bed.Exec(ctx, node, "lxc-info", "--name", c.name, "-p", "-H")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

func (l lxc) server(_ string, c outside) (string, error) {
	return netip.AddrPortFrom(l.address(c), uint16(c.port)).String(), nil
}

func (l lxc) remove(ctx context.Context, node string, c outside) error {
	_, err := l.bed.Exec(ctx, node, "lxc-destroy", "--force", "--name", c.name)
	return err
}

// checkpointed is lxc-checkpoint, a copy of its files, and lxc-checkpoint on the other node.
func (l lxc) checkpointed(ctx context.Context, from string, c outside) ([]results.Measurement, error) {
	if err := l.bed.Empty(from, lxcImages); err != nil {
		return nil, err
	}
	checkpoint, err := l.bed.Time(ctx, from, "lxc-checkpoint", "--name", c.name, "--stop", "--checkpoint-dir",
		lxcImages)
	if err != nil {
		return nil, err
	}
	copied, size, err := l.bed.Send(ctx, from, lxcImages+"/")
	if err != nil {
		return nil, err
	}
	restore, err := l.bed.Time(ctx, testbed.Other(from), "lxc-checkpoint", "--name", c.name, "--restore",
		"--checkpoint-dir", testbed.Incoming)
	return moves.TookOwn(checkpoint, copied, restore, size), err
}
