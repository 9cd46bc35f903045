package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"time"
)

// incoming is where the rsync daemon of a node puts received files, in memory.
const (
	incoming    = benchDir + "/incoming"
	rsyncModule = "incoming"
	rsyncFiles  = "files" // on the node's disk
	rsyncBench  = "bench" // all files of other ways in memory
	rsyncPort   = 8730
)

// rsyncDaemons are the receiving sides of the other ways' copies.
type rsyncDaemons struct{ running []*exec.Cmd }

func (d *rsyncDaemons) start(ctx context.Context, b *bed) error {
	config := "use chroot = no\nreverse lookup = no\nuid = 0\ngid = 0\nread only = no\n"
	for _, module := range [][2]string{{rsyncModule, incoming}, {rsyncFiles, filesIncoming},
		{rsyncBench, benchDir}} {
		config += fmt.Sprintf("[%s]\npath = %s\n", module[0], module[1])
	}
	for _, node := range nodes {
		if err := b.empty(node, incoming); err != nil {
			return err
		}
		file := benchDir + "/rsyncd.conf"
		if err := b.write(node, file, []byte(config)); err != nil {
			return err
		}
		cmd, err := b.command(ctx, node, []string{
			"rsync", "--daemon", "--no-detach", "--config", file, "--port", fmt.Sprint(rsyncPort),
		})
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("rsync daemon on node %s: %w", node, err)
		}
		d.running = append(d.running, cmd)
		if err := b.awaitDaemon(ctx, node, rsyncPort); err != nil {
			return fmt.Errorf("rsync daemon on node %s: %w", node, err)
		}
	}
	return nil
}

// awaitDaemon waits until a daemon listens on a node.
func (b *bed) awaitDaemon(ctx context.Context, node string, port uint16) error {
	address, err := b.lab.Address(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := b.dialProgram(ctx, node, netip.AddrPortFrom(address, port).String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// stop ends the daemons.
func (d *rsyncDaemons) stop() error {
	running := d.running
	d.running = nil
	return endAll("an rsync daemon", running)
}

// copy sends a file, or the contents of a directory, to the other node, where they do not exist yet. It
// returns the duration in seconds.
func (b *bed) copy(ctx context.Context, from, path string) (float64, error) {
	if err := b.empty(other(from), incoming); err != nil {
		return 0, err
	}
	return b.copyMore(ctx, from, path)
}

// send is copy, and also returns the size.
func (b *bed) send(ctx context.Context, from, path string) (took, size float64, err error) {
	if size, err = b.sizeOf(from, path); err != nil {
		return 0, 0, err
	}
	took, err = b.copy(ctx, from, path)
	return took, size, err
}

// copyMore is copy where an older version exists.
func (b *bed) copyMore(ctx context.Context, from, path string) (float64, error) {
	address, err := b.lab.Address(other(from))
	if err != nil {
		return 0, err
	}
	return b.time(ctx, from, "rsync", "--archive", path,
		fmt.Sprintf("rsync://%s:%d/%s/", address, rsyncPort, rsyncModule))
}
