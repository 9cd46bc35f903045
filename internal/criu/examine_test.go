package criu

import (
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/examine"
)

// refusals are what CRIU 4.2.1 refuses: what the workload does, what Examine must report, and what CRIU
// logs.
var refusals = []struct{ do, says, log string }{
	{"io_uring", "io_uring", "Can't retrieve FDs from socket"},
	{"userfaultfd", "userfaultfd", "anon_inode:[userfaultfd]"},
	{"perf_event", "perf_event", "anon_inode:[perf_event]"},
	{"bpf-map", "bpf-map", "anon_inode:bpf-map"},
	{"landlock", "landlock-ruleset", "anon_inode:[landlock-ruleset]"},
	{"fscontext", "fscontext", "anon_inode:[fscontext]"},
	{"seccomp-listener", "seccomp notify", "anon_inode:seccomp notify"},
	{"memfd-hugetlb", "huge pages", "Can't lookup mount"},
	{"memfd-secret", "secret memory", "/secretmem"},
	{"map-io_uring", "memory of io_uring", "anon_inode:[io_uring]"},
	{"detached-mount", "outside of the container", "Can't lookup mount"},
	{"pidfd-thread", "pidfd of a thread", "PIDFD_THREAD"},
	{"mqueue", "message queue /test", "Can't lookup mount"},
	{"mqueue kept", "message queue /test", "mqueue isn't empty"},
	{"socket-mptcp", "MPTCP", "Unsupported proto 262"},
	{"mptcp-closed-watch", "MPTCP listener that cannot be replaced", "Unsupported proto 262"},
	{"socket-route-group33", "multicast group 33", "more than 32 groups"},
	{"socket-vsock", "AF_VSOCK", "Unknown socket collected (family 40)"},
	{"socket-xdp", "AF_XDP", "Unknown socket collected (family 44)"},
	{"unix-external-stream @outside", "outside of the container", "External socket is used"},
	{"unix-external-dgram @outside-dgram", "outside of the container", "External socket is used"},
	{"pipe-packet", "packet mode", "packetized mode"},
	{"eventfd-semaphore", "EFD_SEMAPHORE", ""},
	{"eventfd-large", "count of 4294967296", ""},
	// CRIU can restore it, but the file cannot be copied
	{"lease", "write lease on /data/leased", ""},
	{"device /dev/kvm", "character device 10:232 (/dev/kvm)", "chr 10:232"},
	{"child-pid", "pid namespace", "nested pid namespace"},
	{"child-uts", "uts namespace", "nested uts namespace"},
	{"child-ipc", "ipc namespace", "nested ipc namespace"},
	{"child-user", "user namespace", "nested user namespace"},
	{"child-cgroup", "cgroup namespace", "nested cgroup namespace"},
	{"child-time", "time namespace", "nested time namespace"},
	{"child-traced", "traced by process", ""}, // CRIU tries for 10 s, then: zombie found while seizing
	{"child-dead-leader", "first thread has ended", "Zombies with threads"},
	{"mount-fuse", "mount of /data (fuse)", "chr 10:229"},
	{"child-sigtrap", "SIGTRAP waits", "with a pending SIGTRAP"},
	{"unix-closed-waiting", "closed before it was accepted", "closed in-flight socket"},
	{"udp-cork", "UDP_CORK", "corked dgram socket"},
	{"mount-over-file", "descriptor 9: open file below another mount: /data/file", "Can't link remap"},
	{"mount-over-tmpfs", "open file below another mount: /data/file", "on overmounted mounts"},
	{"mount-over-mapping", "open file below another mount: /data/file", "Can't link remap"},
	{"mount-over-cwd", "working directory below another mount: /data", "Unaccessible path"},
	{"mount-ramfs", "mount of /data (ramfs)", "unsupported id"},
}

// restorable is what CRIU 4.2.1 dumps and restores, and Examine must not refuse. There is one entry for
// each kind of file and lock.
var restorable = []string{
	"eventfd", "timerfd", "signalfd", "epoll", "inotify", "fanotify", "memfd", "namespace", "pidfd-self",
	"pidfd-child",
	"aio", "socket-icmp", "socket-icmp6", "socket-raw", "socket-tcp", "socket-udp", "socket-udp6",
	"socket-udplite", "socket-packet", "socket-route", "socket-route-bound", "socket-uevent", "unix-pair",
	"unix-dgram-pair", "unix-seqpacket-pair", "unix-listen", "tcp-listen", "pipe", "pipe-half",
	"file", "file-deleted", "file-unlinked", "file-tmpfile", "file-proc", "file-sys", "file-shm", "directory",
	"path",
	"flock", "lease-read", "device /dev/null", "device /dev/zero", "device /dev/full", "device /dev/random",
	"device /dev/urandom", "device /dev/net/tun", "terminal", "map-shared", "map-droppable", "map-guard",
	"map-device /dev/zero", "thread-stopped", "child", "child-net", "child-mount", "child-zombie",
	"child-chroot",
	"descriptor-in-flight", "flight-pair", "flight-stream", "child-session", "child-session-tty",
	"fanotify-mount", "fanotify-id", "watch-file",
	"file-sparse-deleted",
}

// alone is what CRIU restores but must be tried separately: mounts of one directory, and a pidfd of an
// ended process. For the latter, CRIU 4.2.1 makes a short-lived process with any free PID. Now and then
// another process makes a thread with this PID at the same moment ("Unable to create a thread: -17", in 9
// of 52 restores of everything above together with it, and in 0 of 20 without it). Then nothing runs, and
// the restore may be tried again.
var alone = []string{"pidfd-dead", "mount-tmpfs", "mount-proc", "mount-bind", "mount-debugfs",
	"mount-over-mount", "mount-over-socket", "watch-directory"}

// TestExamineRefuses tries each refusal with Examine and with CRIU. After each, the container must
// continue.
func TestExamineRefuses(t *testing.T) {
	c := newContainer(t, privileged)
	listenOutside(t, c)
	client := c.dial()
	for _, r := range refusals {
		t.Run(r.do, func(t *testing.T) {
			client.t = t
			client.do(r.do)
			if said := c.examine(t); !strings.Contains(said, r.says) {
				t.Errorf("Examine says %q, want %q", said, r.says)
			}
			if r.log != "" {
				err := c.startDump().Run(deadline(t), c.images)
				if err == nil || !strings.Contains(err.Error(), r.log) {
					t.Errorf("CRIU says %v, want %q", err, r.log)
				}
				must(t, c.group.Thaw())
			}
			client.undo()
			c.emptyImages()
		})
	}
}

// TestExamineLost tries what CRIU dumps but does not restore correctly. For example, a cgroup made inside
// is lost, an overlay mounted inside makes the restore fail, and a watch of a removed file is lost after it
// has reported names that CRIU makes.
func TestExamineLost(t *testing.T) {
	c := newContainer(t, privileged)
	client := c.dial()
	for do, says := range map[string]string{
		"child-in-cgroup " + nestedCgroup(c): "in another cgroup",
		"mount-overlay":                      "mount of /data (overlay)",
		"child-session-lost":                 "whose leader has ended",
		"mount-over-deleted":                 "open file below another mount: /data/deleted (deleted)",
		"flight-closed":                      "in a message that is not received yet",
		"flight-datagram":                    "in a message that is not received yet",
		"fanotify-system":                    "FAN_MARK_FILESYSTEM",
		"watch-removed":                      "inotify watch of a removed file: /data/watched",
		"watch-linked":                       "inotify watch of a removed file: /data/watched",
		"watch-where-linked": "inotify watch of /data, where the name of an open file was " +
			"removed: /data/watched",
		"lease-breaking": "lease on /data/leased that another process has asked",
	} {
		client.do(do)
		if said := c.examine(t); !strings.Contains(said, says) {
			t.Errorf("Examine says %q of %s, want %q", said, do, says)
		}
		client.undo()
	}
}

// nestedCgroup returns the path, in the container, of a cgroup below its own.
func nestedCgroup(c *container) string {
	// not mounted in the container: see freezer
	if strings.HasPrefix(c.group.FreezerDir(), "/sys/fs/cgroup/unified") {
		return "/sys/fs/cgroup/freezer/nested"
	}
	return "/sys/fs/cgroup/nested"
}

// TestExamineAllows makes everything that CRIU can restore, and moves it.
func TestExamineAllows(t *testing.T) {
	c := newContainer(t, privileged)
	client := c.dial()
	todo := append(restorable[:len(restorable):len(restorable)], "tcp-connecting "+c.neighbour())
	if runtime.GOARCH == "amd64" {
		todo = append(todo, "child-32-bit")
	}
	for _, do := range todo {
		client.do(do)
		if said := c.examine(t); said != "" {
			t.Errorf("Examine says %q of %s", said, do)
		}
	}
	c.move(t)
	client.undo()
	for _, do := range alone {
		client.do(do)
		if said := c.examine(t); said != "" {
			t.Errorf("Examine says %q of %s", said, do)
		}
		c.move(t)
		client.undo()
	}
	client.count()
}

// TestMoveSettings checks that settings of the container's ipc and uts namespaces move with it.
func TestMoveSettings(t *testing.T) {
	c := newContainer(t, privileged)
	client := c.dial()
	settings := map[string]string{
		"kernel/msgmax": "9000", "kernel/msgmnb": "20000", "kernel/msgmni": "30", "kernel/shmmax": "123456",
		"kernel/shmall": "77777",
		"kernel/shmmni": "22", "kernel/shm_rmid_forced": "1", "kernel/sem": "300 40000 50 60",
		"kernel/domainname":    "example",
		"fs/mqueue/queues_max": "11", "fs/mqueue/msg_max": "77", "fs/mqueue/msgsize_max": "9999",
	}
	for name, value := range settings {
		client.do("sysctl " + name + " " + value)
	}
	if said := c.examine(t); said != "" {
		t.Errorf("Examine says %q", said)
	}
	c.move(t)
	for name, want := range settings {
		if got, err := client.ask("setting " + name); err != nil || got != want {
			t.Errorf("%s is %q, %v after the move, want %q", name, got, err, want)
		}
	}
}

// TestRollBackUnseen watches an open file or its directory for all events, and checks that a dump that is
// undone causes none.
func TestRollBackUnseen(t *testing.T) {
	c := newContainer(t, privileged)
	client := c.dial()
	for _, do := range []string{"watch-file", "watch-parent"} {
		client.do(do)
		c.dump()
		c.abort()
		if got, err := client.ask("events"); err != nil || got != "none" {
			t.Errorf("%s: events after a dump that was undone: %q, %v", do, got, err)
		}
		client.undo()
		c.emptyImages()
	}
}

// move dumps the container and restores it.
func (c *container) move(t *testing.T) {
	t.Helper()
	c.dump()
	c.killQuietly()
	r := c.startRestore()
	must(t, r.proxy.WaitReady(deadline(t)))
	_, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { return nil })
	if err != nil {
		t.Fatalf("%v\n%s", err, r.logs())
	}
	must(t, <-r.done)
	must(t, os.Remove(r.record))
	c.attach()
	c.unplug(false)
	c.emptyImages()
}

// examine joins all findings of Examine.
func (c *container) examine(t *testing.T) string {
	t.Helper()
	pids, err := c.group.Procs()
	must(t, err)
	problems, err := examine.Examine(deadline(t), examine.Subject{PIDs: pids,
		Mounts: Externals{Mounts: c.request().ExternalMounts}.MountKeys()})
	must(t, err)
	var said []string
	for _, p := range problems {
		if p.Why == "" || p.Remedy == "" {
			t.Errorf("%v has no reason or no remedy", p)
		}
		if strings.Contains(p.Remedy, "mode restart") {
			t.Errorf("%v recommends %q, which not every engine can", p, p.Remedy)
		}
		said = append(said, p.String())
	}
	return strings.Join(said, "; ")
}

// privileged gives a container the privileges that the workload needs to make everything.
func privileged(s *specs.Spec) {
	var caps []string
	for name := range strings.FieldsSeq(`CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID SETPCAP SETFCAP NET_ADMIN NET_RAW IPC_LOCK
		SYS_CHROOT SYS_PTRACE SYS_ADMIN MKNOD LEASE PERFMON BPF`) {
		caps = append(caps, "CAP_"+name)
	}
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	s.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true,
		Access: "rwm"}}}
	for i, m := range s.Mounts {
		if m.Type == "cgroup" {
			s.Mounts[i].Options = []string{"nosuid", "noexec", "nodev", "rw"}
		}
	}
	mode := os.FileMode(0o666)
	for path, minor := range map[string]int64{"/dev/fuse": 229, "/dev/net/tun": 200, "/dev/kvm": 232} {
		s.Linux.Devices = append(s.Linux.Devices,
			specs.LinuxDevice{Path: path, Type: "c", Major: 10, Minor: minor, FileMode: &mode})
	}
}

// listenOutside makes unix sockets of this process in the container's network namespace, where abstract
// names are found.
func listenOutside(t *testing.T, c *container) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		f, err := os.Open(c.netns)
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			_ = f.Close()
		}
		if err != nil {
			done <- err
			return
		}
		l, err := net.Listen("unix", "@outside")
		if err != nil {
			done <- err
			return
		}
		t.Cleanup(func() { _ = l.Close() })
		go acceptAll(l)
		p, err := net.ListenPacket("unixgram", "@outside-dgram")
		if err == nil {
			t.Cleanup(func() { _ = p.Close() })
		}
		done <- err
	}()
	must(t, <-done)
}

// acceptAll keeps connections until the other end closes them.
func acceptAll(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() { _, _ = conn.Read(make([]byte, 1)); _ = conn.Close() }()
	}
}

// TestExaminePipe gives the container a pipe as standard output whose other end is outside. The pipe is an
// obstacle unless the restore gets it from outside.
func TestExaminePipe(t *testing.T) {
	out, in, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { _ = out.Close() })
	c := newContainerWith(t, in)
	must(t, in.Close())
	if said := c.examine(t); !strings.Contains(said, "descriptor 1: pipe:[") ||
		!strings.Contains(said, "whose other end is held by process") {
		t.Errorf("Examine says %q, want that a pipe leads outside", said)
	}
	name, err := os.Readlink("/proc/" + itoa(c.pid) + "/fd/1")
	must(t, err)
	pids, err := c.group.Procs()
	must(t, err)
	problems, err := examine.Examine(deadline(t),
		examine.Subject{PIDs: pids, Stdio: []string{os.DevNull, name, os.DevNull}})
	if err != nil || problems != nil {
		t.Errorf("Examine says %v, %v of standard output that is known", problems, err)
	}
}

// TestExamineGone examines processes that have ended.
func TestExamineGone(t *testing.T) {
	problems, err := examine.Examine(deadline(t), examine.Subject{PIDs: []int{1 << 22}})
	if err != nil || problems != nil {
		t.Errorf("Examine: %v, %v, want nothing", problems, err)
	}
}
