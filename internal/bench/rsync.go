package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"time"
)

// incoming is where the rsync daemon of a node puts what comes, in memory.
const (
	incoming    = benchDir + "/incoming"
	rsyncModule = "incoming"
	rsyncPort   = 8730
)

// rsyncDaemons are the receiving sides of the peers' copies.
type rsyncDaemons struct{ running []*exec.Cmd }

func (d *rsyncDaemons) start(ctx context.Context, b *bed) error {
	config := fmt.Sprintf("use chroot = no\nreverse lookup = no\nuid = 0\ngid = 0\n[%s]\npath = %s\nread only = no\n", rsyncModule, incoming)
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
		if err := awaitRsync(ctx, b, node); err != nil {
			return err
		}
	}
	return nil
}

func awaitRsync(ctx context.Context, b *bed, node string) error {
	address, err := b.lab.Address(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := b.lab.Dial(ctx, node, "tcp", netip.AddrPortFrom(address, rsyncPort).String())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rsync daemon on node %s does not answer: %w", node, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop ends the daemons.
func (d *rsyncDaemons) stop() error {
	var failed error
	for _, cmd := range d.running {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			failed = errors.Join(failed, fmt.Errorf("end an rsync daemon: %w", err))
		}
		_ = cmd.Wait() // it was killed
	}
	d.running = nil
	return failed
}

// copy sends a file, or what is in a directory, to the other node, where nothing of it is yet. It returns how long that
// took, in seconds.
func (b *bed) copy(ctx context.Context, from, path string) (float64, error) {
	to := other(from)
	if err := b.empty(to, incoming); err != nil {
		return 0, err
	}
	address, err := b.lab.Address(to)
	if err != nil {
		return 0, err
	}
	return b.time(ctx, from, "rsync", "--archive", path, fmt.Sprintf("rsync://%s:%d/%s/", address, rsyncPort, rsyncModule))
}
