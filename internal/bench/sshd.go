package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

const (
	sshDir  = benchDir + "/ssh"
	sshPort = 2222
	// sshdProgram must be called by its full path (sshd(8)).
	sshdProgram = "/usr/sbin/sshd"
)

// sshDaemons connect one node to the other.
type sshDaemons struct{ running []*exec.Cmd }

func (d *sshDaemons) start(ctx context.Context, b *bed) error {
	if _, err := exec.LookPath(sshdProgram); err != nil {
		return fmt.Errorf("sshd: %w; \"make setup\" installs it", err)
	}
	if err := b.makeKeys(ctx); err != nil {
		return err
	}
	for _, node := range nodes {
		cmd, err := b.command(ctx, node, []string{sshdProgram, "-D", "-e", "-f", sshDir + "/config"})
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("sshd on node %s: %w", node, err)
		}
		d.running = append(d.running, cmd)
		if err := b.awaitDaemon(ctx, node, sshPort); err != nil {
			return fmt.Errorf("sshd on node %s: %w", node, err)
		}
	}
	return nil
}

// makeKeys makes the keys of both nodes, once: each accepts the other.
func (b *bed) makeKeys(ctx context.Context) error {
	config := strings.Join([]string{
		fmt.Sprintf("Port %d", sshPort), "HostKey " + sshDir + "/key",
		"AuthorizedKeysFile " + sshDir + "/key.pub",
		"PermitRootLogin prohibit-password", "UsePAM no", "StrictModes no", "PidFile none", "LogLevel ERROR",
		"",
	}, "\n")
	for _, node := range nodes {
		for _, dir := range []string{sshDir, "/run/sshd"} { // the latter is sshd's directory for its chroot
			if err := b.empty(node, dir); err != nil {
				return err
			}
		}
		if err := b.write(node, sshDir+"/config", []byte(config)); err != nil {
			return err
		}
	}
	if _, err := b.exec(ctx, nodes[0], "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		sshDir+"/key"); err != nil {
		return err
	}
	for _, name := range []string{"/key", "/key.pub"} {
		from, err := b.path(nodes[0], sshDir+name)
		if err != nil {
			return err
		}
		to, err := b.path(nodes[1], sshDir+name)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, data, 0o600)
		}
		if err != nil {
			return fmt.Errorf("key for ssh: %w", err)
		}
	}
	return nil
}

// ssh is the beginning of a command line that runs a command on another node, without its name.
func ssh() []string {
	return []string{
		"ssh", "-q", "-p", fmt.Sprint(sshPort), "-i", sshDir + "/key", "-o", "StrictHostKeyChecking=no",
		"-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes",
	}
}

// stop ends the daemons.
func (d *sshDaemons) stop() error {
	running := d.running
	d.running = nil
	return endAll("sshd", running)
}

// endAll ends programs that would run for ever.
func endAll(what string, running []*exec.Cmd) error {
	var failed error
	for _, cmd := range running {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			failed = errors.Join(failed, fmt.Errorf("end %s: %w", what, err))
		}
		_ = cmd.Wait() // it was killed
	}
	return failed
}
