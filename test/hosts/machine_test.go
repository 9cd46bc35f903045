//go:build hosts

package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	namespace = "godwit-hosts" // of the machines' network, and of the client's
	bridge    = "hosts"
	gateway   = "10.77.0.1" // the client's address
	bootLimit = 20 * time.Minute
)

// machine is a virtual machine with a stock Debian.
type machine struct {
	name, suite string
	number      int
	image       string // directory with its disk, kernel and initrd
	directory   string // of this run
	qemu        *exec.Cmd
	said        bytes.Buffer  // by QEMU
	began       time.Time     // when it was switched on
	ended       chan struct{} // closed when QEMU has ended
}

func (m *machine) address() string { return fmt.Sprintf("10.77.0.1%d", m.number) }

// makeNetwork makes the network namespace in which the machines and the client are.
func makeNetwork(t *testing.T) {
	t.Helper()
	remove := func() { _ = exec.Command("ip", "netns", "delete", namespace).Run() } // if it is there
	remove()
	t.Cleanup(remove)
	for _, command := range []string{
		"netns add " + namespace,
		"-n " + namespace + " link set lo up",
		"-n " + namespace + " link add " + bridge + " type bridge",
		"-n " + namespace + " address add " + gateway + "/24 dev " + bridge,
		"-n " + namespace + " link set " + bridge + " up",
	} {
		host(t, "ip", strings.Fields(command)...)
	}
}

// host runs a command on this machine.
func host(t *testing.T, command string, args ...string) string {
	t.Helper()
	out, err := exec.Command(command, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", command, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// accelerated tells whether this machine can run others itself. A machine may have /dev/kvm and not
// be able to.
func accelerated() bool {
	flags, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !bytes.Contains(flags, []byte(" vmx")) && !bytes.Contains(flags, []byte(" svm")) {
		return false
	}
	return unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil
}

// newMachine makes a machine's own disk and its place on the network. It is switched on by boot.
func newMachine(t *testing.T, directory, suite string, number int) *machine {
	t.Helper()
	m := &machine{name: string(rune('a' + number - 1)), suite: suite, number: number, directory: directory}
	making := exec.Command("../../scripts/hosts-image.sh", suite)
	making.Stderr = os.Stderr
	image, err := making.Output()
	if err != nil {
		t.Fatalf("image of %s: %v", suite, err)
	}
	m.image = strings.TrimSpace(string(image))
	host(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b",
		filepath.Join(m.image, "disk.qcow2"), m.disk())
	host(t, "ip", "-n", namespace, "tuntap", "add", m.tap(), "mode", "tap")
	host(t, "ip", "-n", namespace, "link", "set", m.tap(), "master", bridge, "up")
	return m
}

func (m *machine) disk() string    { return filepath.Join(m.directory, m.name+".qcow2") }
func (m *machine) console() string { return filepath.Join(m.directory, m.name+".console") }
func (m *machine) tap() string     { return "tap-" + m.name }

// boot switches machines on and waits until they can be logged in to.
func boot(t *testing.T, all ...*machine) {
	t.Helper()
	for _, m := range all {
		m.switchOn(t)
	}
	for _, m := range all {
		m.awaitLogin(t)
	}
}

func (m *machine) switchOn(t *testing.T) {
	t.Helper()
	// With a thread for each processor, Linux 6.12 died in three of six runs while it patched jump labels in
	// __schedule.
	accel, cpu := "tcg,thread=single", "max"
	if accelerated() {
		accel, cpu = "kvm", "host"
	}
	m.qemu = exec.Command("ip", "netns", "exec", namespace, "qemu-system-x86_64", "-name", "godwit-"+m.name,
		"-M", "q35", "-accel", accel, "-cpu", cpu, "-smp", "2", "-m", "3072",
		"-nodefaults", "-display", "none", "-serial", "file:"+m.console(),
		"-kernel", filepath.Join(m.image, "vmlinuz"), "-initrd", filepath.Join(m.image, "initrd"),
		"-append", fmt.Sprintf("console=ttyS0 root=/dev/vda rw net.ifnames=0 mitigations=off "+
			"systemd.hostname=%s godwit.address=%s/24", m.name, m.address()),
		"-drive", "file="+m.disk()+",if=virtio,cache=unsafe,discard=unmap",
		"-drive", "file="+filepath.Join(m.directory, "payload.img")+",if=virtio,format=raw,read-only=on",
		"-netdev", "tap,id=lan,ifname="+m.tap()+",script=no,downscript=no",
		"-device", fmt.Sprintf("virtio-net-pci,netdev=lan,mac=52:54:00:77:00:0%d", m.number),
		"-device", "virtio-rng-pci")
	m.said.Reset()
	m.qemu.Stdout, m.qemu.Stderr = &m.said, &m.said
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	m.began = time.Now()
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
}

func (m *machine) awaitLogin(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	for {
		if err := m.ssh(ctx, "true").Run(); err == nil {
			break
		}
		select {
		case <-m.ended:
			t.Fatalf("QEMU of %s has ended: %s", m.name, &m.said)
		case <-ctx.Done():
			console, _ := exec.Command("tail", "-n", "20", m.console()).Output()
			t.Fatalf("%s cannot be logged in to after %v; its console:\n%s", m.name, bootLimit, console)
		case <-time.After(time.Second):
		}
	}
	t.Logf("%s (%s) is up after %.0f s", m.name, m.suite, time.Since(m.began).Seconds())
}

// start starts QEMU from a thread that lives as long as QEMU, whose end is QEMU's, too.
func (m *machine) start() error {
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

// kill is a loss of power.
func (m *machine) kill() {
	_ = m.qemu.Process.Kill()
	<-m.ended
}

// ssh is a command on the machine. Logging in is slow on an emulated processor, so one connection
// is kept. The command ends when the machine has not answered for three minutes.
func (m *machine) ssh(ctx context.Context, script string) *exec.Cmd {
	cache := filepath.Dir(m.image)
	return exec.CommandContext(ctx, "ip", "netns", "exec", namespace, "ssh", "-i",
		filepath.Join(cache, "key"),
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
		"-o", "ControlMaster=auto", "-o", "ControlPath="+filepath.Join(m.directory, "ssh-"+m.name), "-o",
		"ControlPersist=1h",
		"-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=6",
		"-o", "BatchMode=yes",
		"root@"+m.address(), script)
}

// try runs a script on the machine.
func (m *machine) try(t *testing.T, script string) (string, error) {
	t.Helper()
	out := &bytes.Buffer{}
	command := m.ssh(t.Context(), script)
	command.Stdout, command.Stderr = out, out
	err := command.Run()
	said := strings.TrimSpace(out.String())
	if err != nil {
		return said, fmt.Errorf("%w: %s", err, said)
	}
	return said, nil
}

// run runs a script on the machine that must not fail.
func (m *machine) run(t *testing.T, script string) string {
	t.Helper()
	said, err := m.try(t, script)
	if err != nil {
		t.Fatalf("on %s, %s: %v", m.name, script, err)
	}
	return said
}

// until waits until a command of the machine succeeds. It has no single quotes.
func (m *machine) until(t *testing.T, command string) {
	t.Helper()
	m.run(t, "timeout 300 sh -c 'until "+command+"; do sleep 0.2; done'")
}

// dial connects to an address on the machines' network.
func dial(ctx context.Context, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	dialled := make(chan result)
	go func() { // its thread is of another network namespace, and ends with it
		runtime.LockOSThread()
		where, err := os.Open("/run/netns/" + namespace)
		if err == nil {
			err = errors.Join(unix.Setns(int(where.Fd()), unix.CLONE_NEWNET), where.Close())
		}
		var conn net.Conn
		if err == nil {
			conn, err = (&net.Dialer{}).DialContext(ctx, "tcp4", address)
		}
		dialled <- result{conn, err}
	}()
	d := <-dialled
	return d.conn, d.err
}
