package testbed

import (
	"context"
	"fmt"
	"os/exec"
)

const (
	// FilesHome is where other ways keep files, on a node's own disk, as Godwit does.
	FilesHome = "/var/lib/godwit/bench"
	// FilesIncoming is where they receive files.
	FilesIncoming = FilesHome + "/incoming"
)

// incoming is where the rsync daemon of a node puts received files, in memory.
const (
	Incoming    = BenchDir + "/incoming"
	rsyncModule = "incoming"
	RsyncFiles  = "files" // on the node's disk
	RsyncBench  = "bench" // all files of other ways in memory
	RsyncPort   = 8730
)

// RsyncDaemons are the receiving sides of the other ways' copies.
type RsyncDaemons struct{ running []*exec.Cmd }

// Start starts a daemon on both nodes.
func (d *RsyncDaemons) Start(ctx context.Context, b *Bed) error {
	config := "use chroot = no\nreverse lookup = no\nuid = 0\ngid = 0\nread only = no\n"
	for _, module := range [][2]string{{rsyncModule, Incoming}, {RsyncFiles, FilesIncoming},
		{RsyncBench, BenchDir}} {
		config += fmt.Sprintf("[%s]\npath = %s\n", module[0], module[1])
	}
	for _, node := range Nodes {
		if err := b.Empty(node, Incoming); err != nil {
			return err
		}
		file := BenchDir + "/rsyncd.conf"
		if err := b.Write(node, file, []byte(config)); err != nil {
			return err
		}
		cmd, err := b.Command(ctx, node, []string{
			"rsync", "--daemon", "--no-detach", "--config", file, "--port", fmt.Sprint(RsyncPort),
		})
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("rsync daemon on node %s: %w", node, err)
		}
		d.running = append(d.running, cmd)
		if err := b.AwaitDaemon(ctx, node, RsyncPort); err != nil {
			return fmt.Errorf("rsync daemon on node %s: %w", node, err)
		}
	}
	return nil
}

// Stop ends the daemons.
func (d *RsyncDaemons) Stop() error {
	running := d.running
	d.running = nil
	return EndAll("an rsync daemon", running)
}

// Copy sends a file, or the contents of a directory, to the other node, where they do not exist yet. It
// returns the duration in seconds.
func (b *Bed) Copy(ctx context.Context, from, path string) (float64, error) {
	if err := b.Empty(Other(from), Incoming); err != nil {
		return 0, err
	}
	return b.CopyMore(ctx, from, path)
}

// Send is copy, and also returns the size.
func (b *Bed) Send(ctx context.Context, from, path string) (took, size float64, err error) {
	if size, err = b.SizeOf(from, path); err != nil {
		return 0, 0, err
	}
	took, err = b.Copy(ctx, from, path)
	return took, size, err
}

// CopyMore is copy where an older version exists.
func (b *Bed) CopyMore(ctx context.Context, from, path string) (float64, error) {
	address, err := b.Lab.Address(Other(from))
	if err != nil {
		return 0, err
	}
	return b.Time(ctx, from, "rsync", "--archive", path,
		fmt.Sprintf("rsync://%s:%d/%s/", address, RsyncPort, rsyncModule))
}
