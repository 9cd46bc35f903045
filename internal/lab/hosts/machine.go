package hosts

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bootLimit is how long a machine may take until a login works. Emulated processors are slow.
const bootLimit = 20 * time.Minute

// Machine is a virtual machine with a stock Debian.
type Machine struct {
	Name, Suite string

	number    int
	image     string // directory with its disk, kernel and initrd
	directory string // of this run
	log       func(format string, args ...any)
	qemu      *exec.Cmd
	said      bytes.Buffer  // by QEMU
	began     time.Time     // when it was switched on
	ended     chan struct{} // closed when QEMU has ended; nil if it was never switched on
}

// Address returns the machine's address on the machines' network.
func (m *Machine) Address() string { return fmt.Sprintf("10.77.0.1%d", m.number) }

// accelerated reports whether this machine can run virtual machines. A machine may have /dev/kvm and still
// not be able to.
func accelerated() bool {
	flags, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !bytes.Contains(flags, []byte(" vmx")) && !bytes.Contains(flags, []byte(" svm")) {
		return false
	}
	return unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil
}

// newMachine makes a machine's disk and its place on the network. Boot switches it on.
func newMachine(ctx context.Context, config Config, number int) (*Machine, error) {
	m := &Machine{
		Name: string(rune('a' + number - 1)), Suite: config.Suites[number-1], number: number,
		directory: config.Directory, log: config.Log,
	}
	making := exec.CommandContext(ctx, filepath.Join(config.Repository, "scripts/hosts-image.sh"), m.Suite)
	making.Stderr = os.Stderr
	image, err := making.Output()
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", m.Suite, err)
	}
	m.image = strings.TrimSpace(string(image))
	for _, command := range [][]string{
		{"qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b",
			filepath.Join(m.image, "disk.qcow2"), m.disk()},
		{"ip", "-n", Namespace, "tuntap", "add", m.tap(), "mode", "tap"},
		{"ip", "-n", Namespace, "link", "set", m.tap(), "master", bridge, "up"},
	} {
		if _, err := run(ctx, command[0], command[1:]...); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Machine) disk() string    { return filepath.Join(m.directory, m.Name+".qcow2") }
func (m *Machine) console() string { return filepath.Join(m.directory, m.Name+".console") }
func (m *Machine) tap() string     { return "tap-" + m.Name }

// Boot switches machines on and waits until logins work.
func Boot(ctx context.Context, all ...*Machine) error {
	for _, m := range all {
		if err := m.switchOn(); err != nil {
			return err
		}
	}
	for _, m := range all {
		if err := m.awaitLogin(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) switchOn() error {
	// With a thread for each processor, Linux 6.12 died in three of six runs while it patched jump labels in
	// __schedule.
	accel, cpu := "tcg,thread=single", "max"
	if accelerated() {
		accel, cpu = "kvm", "host"
	}
	m.qemu = exec.Command("ip", "netns", "exec", Namespace, "qemu-system-x86_64", "-name", "godwit-"+m.Name,
		"-M", "q35", "-accel", accel, "-cpu", cpu, "-smp", "2", "-m", "3072",
		"-nodefaults", "-display", "none", "-serial", "file:"+m.console(),
		"-kernel", filepath.Join(m.image, "vmlinuz"), "-initrd", filepath.Join(m.image, "initrd"),
		"-append", fmt.Sprintf("console=ttyS0 root=/dev/vda rw net.ifnames=0 mitigations=off "+
			"systemd.hostname=%s godwit.address=%s/24", m.Name, m.Address()),
		"-drive", "file="+m.disk()+",if=virtio,cache=unsafe,discard=unmap",
		"-drive", "file="+payloadDisk(m.directory)+",if=virtio,format=raw,read-only=on",
		"-netdev", "tap,id=lan,ifname="+m.tap()+",script=no,downscript=no",
		"-device", fmt.Sprintf("virtio-net-pci,netdev=lan,mac=52:54:00:77:00:0%d", m.number),
		"-device", "virtio-rng-pci")
	m.said.Reset()
	m.qemu.Stdout, m.qemu.Stderr = &m.said, &m.said
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	m.began = time.Now()
	return m.start()
}

// start starts QEMU from a thread that lives as long as QEMU: the kernel kills QEMU when that thread ends.
func (m *Machine) start() error {
	m.ended = make(chan struct{})
	begun := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := m.qemu.Start()
		begun <- err
		if err == nil {
			_ = m.qemu.Wait()
		}
		close(m.ended)
	}()
	return <-begun
}

func (m *Machine) awaitLogin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	for {
		if err := m.Shell(ctx, "true").Run(); err == nil {
			break
		}
		select {
		case <-m.ended:
			return fmt.Errorf("QEMU of %s has ended: %s", m.Name, &m.said)
		case <-ctx.Done():
			console, _ := exec.Command("tail", "-n", "20", m.console()).Output()
			return fmt.Errorf("cannot log in to %s %v after it was switched on; its console:\n%s", m.Name,
				bootLimit, console)
		case <-time.After(time.Second):
		}
	}
	m.log("%s (%s) is up after %.0f s", m.Name, m.Suite, time.Since(m.began).Seconds())
	return nil
}

// Kill simulates a power failure.
func (m *Machine) Kill() {
	if m.ended == nil {
		return
	}
	if m.qemu.Process != nil {
		_ = m.qemu.Process.Kill() // it may have ended
	}
	<-m.ended
	// The connection that is kept would hold the network for some minutes. There may be none.
	_ = exec.Command("ssh", "-O", "exit", "-o", "ControlPath="+m.control(), "root@"+m.Address()).Run()
}

// control is the socket of the connection that is kept.
func (m *Machine) control() string { return filepath.Join(m.directory, "ssh-"+m.Name) }

// Shell is a command that runs a shell script on the machine. Logging in is slow on an emulated
// processor, so one connection is kept. The command ends when the machine has not answered for
// three minutes.
func (m *Machine) Shell(ctx context.Context, script string) *exec.Cmd {
	return Client(ctx, "ssh", "-i", filepath.Join(filepath.Dir(m.image), "key"),
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
		"-o", "ControlMaster=auto", "-o", "ControlPath="+m.control(), "-o",
		"ControlPersist=1h",
		"-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=6",
		"-o", "BatchMode=yes",
		"root@"+m.Address(), script)
}

// Command returns a command that runs a program on the machine.
func (m *Machine) Command(ctx context.Context, args ...string) *exec.Cmd {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return m.Shell(ctx, strings.Join(quoted, " "))
}

// Run runs a shell script on the machine and returns its output.
func (m *Machine) Run(ctx context.Context, script string) (string, error) {
	out, err := m.Shell(ctx, script).CombinedOutput()
	said := strings.TrimSpace(string(out))
	if err != nil {
		return said, fmt.Errorf("on %s, %s: %w: %s", m.Name, script, err, said)
	}
	return said, nil
}
