// Package hosts boots two stock Debian machines in QEMU and joins them into a cluster: Debian's
// kernel, systemd, AppArmor, cgroup version 2, engines as Debian configures them, and Godwit
// installed as the README says. The lab's nodes share one kernel; these two machines do not.
// Clients run on the machine that runs QEMU, in the network namespace of Namespace.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// containerPools are the default pools of Godwit and of the routed networks of Docker, Podman and containerd.
var containerPools = []string{"10.57.0.0/16", "10.58.0.0/16", "10.59.0.0/16", "10.60.0.0/16"}

// Pair is two machines in one cluster, the nodes a and b.
type Pair struct{ A, B *Machine }

// Config says what Up boots.
type Config struct {
	Repository string   // directory of Godwit's sources
	Directory  string   // for the machines' disks
	Suites     []string // Debian's suite of each machine: trixie, bookworm
	// Fill adds files to a directory that both machines mount, read-only, at /mnt. nil: none.
	Fill func(directory string) error
	// PayloadMiB is the size of the disk with these files and Godwit. 0: 400.
	PayloadMiB int
	Log        func(format string, args ...any)
}

// Up boots both machines, installs Godwit, and joins the two. Containers' addresses are routed through a,
// as on a router. If Up fails, nothing is left.
func Up(ctx context.Context, config Config) (_ *Pair, err error) {
	if len(config.Suites) != 2 {
		return nil, fmt.Errorf("%d suites: name one for each of the two machines", len(config.Suites))
	}
	p := &Pair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Down())
		}
	}()
	if err := makeNetwork(ctx); err != nil {
		return nil, err
	}
	if err := makePayload(ctx, config); err != nil {
		return nil, err
	}
	if p.A, err = newMachine(ctx, config, 1); err != nil {
		return nil, err
	}
	if p.B, err = newMachine(ctx, config, 2); err != nil {
		return nil, err
	}
	if err := Boot(ctx, p.A, p.B); err != nil {
		return nil, err
	}
	if err := p.join(ctx); err != nil {
		return nil, err
	}
	for _, pool := range containerPools {
		if _, err := run(ctx, "ip", "-n", Namespace, "route", "add", pool, "via", p.A.Address()); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Machines returns both machines.
func (p *Pair) Machines() []*Machine { return []*Machine{p.A, p.B} }

// Down switches the machines off and removes their network. It can be called again.
func (p *Pair) Down() error {
	for _, m := range p.Machines() {
		if m != nil {
			m.Kill()
		}
	}
	return removeNetwork(context.Background())
}

// join installs Godwit on both machines and makes them nodes of one cluster.
func (p *Pair) join(ctx context.Context) error {
	for _, m := range p.Machines() {
		if _, err := m.Run(ctx, "mount -o ro /dev/vdb /mnt && cp -a /mnt/install/. / && "+
			"systemctl daemon-reload"); err != nil {
			return err
		}
	}
	start := "systemctl enable --now --quiet godwit-agent"
	if _, err := p.A.Run(ctx, "godwit node init --name a --address "+p.A.Address()+" && "+start); err != nil {
		return err
	}
	token, err := p.A.Run(ctx, "godwit node token 2>/dev/null")
	if err != nil {
		return err
	}
	_, err = p.B.Run(ctx, "echo '"+token+"' | godwit node join "+p.A.Address()+
		" --token-file - --name b --address "+p.B.Address()+" && "+start)
	return err
}

// makePayload makes the disk with Godwit, as `make install` installs it, and the files of Fill.
func makePayload(ctx context.Context, config Config) error {
	files := filepath.Join(config.Directory, "payload")
	if _, err := run(ctx, "make", "-C", config.Repository, "--no-print-directory", "install", "PREFIX=/usr",
		"DESTDIR="+filepath.Join(files, "install")); err != nil {
		return err
	}
	if config.Fill != nil {
		if err := config.Fill(files); err != nil {
			return err
		}
	}
	size := config.PayloadMiB
	if size == 0 {
		size = 400
	}
	disk := payloadDisk(config.Directory)
	if _, err := run(ctx, "truncate", "--size", fmt.Sprintf("%dM", size), disk); err != nil {
		return err
	}
	if _, err := run(ctx, "mkfs.ext4", "-q", "-F", "-d", files, disk); err != nil {
		return err
	}
	return os.RemoveAll(files)
}

func payloadDisk(directory string) string { return filepath.Join(directory, "payload.img") }

// run runs a command on this machine.
func run(ctx context.Context, command string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, command, args...).CombinedOutput()
	said := strings.TrimSpace(string(out))
	if err != nil {
		return said, fmt.Errorf("%s %s: %w: %s", command, strings.Join(args, " "), err, said)
	}
	return said, nil
}
