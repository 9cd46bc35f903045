package files

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/godwit/godwit/internal/bench/testbed"
)

const (
	sshDir  = testbed.BenchDir + "/ssh"
	sshPort = 2222
	// sshdProgram must be called by its full path (sshd(8)).
	sshdProgram = "/usr/sbin/sshd"
)

// sshDaemons connect one node to the other.
type sshDaemons struct{ running []*exec.Cmd }

func (d *sshDaemons) start(ctx context.Context, b *testbed.Bed) error {
	if _, err := exec.LookPath(sshdProgram); err != nil {
		return fmt.Errorf("sshd: %w; \"make setup\" installs it", err)
	}
	if err := makeKeys(ctx, b); err != nil {
		return err
	}
	for _, node := range testbed.Nodes {
		cmd, err := b.Command(ctx, node, []string{sshdProgram, "-D", "-e", "-f", sshDir + "/config"})
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("sshd on node %s: %w", node, err)
		}
		d.running = append(d.running, cmd)
		if err := b.AwaitDaemon(ctx, node, sshPort); err != nil {
			return fmt.Errorf("sshd on node %s: %w", node, err)
		}
	}
	return nil
}

// makeKeys makes the keys of both nodes, once: each accepts the other.
func makeKeys(ctx context.Context, b *testbed.Bed) error {
	config := strings.Join([]string{
		fmt.Sprintf("Port %d", sshPort), "HostKey " + sshDir + "/key",
		"AuthorizedKeysFile " + sshDir + "/key.pub",
		"PermitRootLogin prohibit-password", "UsePAM no", "StrictModes no", "PidFile none", "LogLevel ERROR",
		"",
	}, "\n")
	for _, node := range testbed.Nodes {
		for _, dir := range []string{sshDir, "/run/sshd"} { // the latter is sshd's directory for its chroot
			if err := b.Empty(node, dir); err != nil {
				return err
			}
		}
		if err := b.Write(node, sshDir+"/config", []byte(config)); err != nil {
			return err
		}
	}
	if _, err := b.Exec(ctx, testbed.Nodes[0], "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		sshDir+"/key"); err != nil {
		return err
	}
	for _, name := range []string{"/key", "/key.pub"} {
		from, err := b.Path(testbed.Nodes[0], sshDir+name)
		if err != nil {
			return err
		}
		to, err := b.Path(testbed.Nodes[1], sshDir+name)
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
	return testbed.EndAll("sshd", running)
}
