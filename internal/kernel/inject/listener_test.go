package inject

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// envServer makes the test program a server of this kind.
const (
	envServer    = "GODWIT_TEST_SERVER"
	byGo         = "go"             // Go's net package
	byHTTP       = "http"           // Go's HTTP server
	blocking     = "blocking"       // accept(2)
	twoEpolls    = "epoll-twice"    // Go's net package, whose epoll instance has a second descriptor
	twoListeners = "listener-twice" // Go's net package, with another descriptor of the listener, highListener
	closedWatch  = "closed-watch"   // Go's net package, with a watch of a closed duplicate
	abroad       = "abroad"         // Go's net package, in another network namespace than its listener
	deferring    = "deferring"      // Go's net package, with TCP_DEFER_ACCEPT: half open until data comes
)

const (
	highListener = 900
	abroadSocket = 3
)

var _ = func() bool {
	if kind := os.Getenv(envServer); kind != "" {
		fmt.Fprintln(os.Stderr, serveForTest(kind))
		os.Exit(1)
	}
	return true
}()

// serveForTest listens by MPTCP, tells its port, and echoes one line on each connection.
func serveForTest(kind string) error {
	fd, err := socketForTest()
	if kind == abroad {
		fd, err = abroadSocket, nil
	}
	if err != nil {
		return err
	}
	for _, option := range []int{unix.SO_REUSEADDR, unix.SO_KEEPALIVE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 50_000); err != nil {
		return err
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.Listen(fd, 77)
	}
	if err != nil {
		return err
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	port := address.(*unix.SockaddrInet4).Port
	if kind == blocking {
		fmt.Println(port)
		return acceptForTest(fd)
	}
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	listener, err := net.FileListener(file) // duplicates the descriptor
	if err != nil {
		return err
	}
	if err := unusual(kind, fd); err != nil {
		return err
	}
	fmt.Println(port)
	if kind == byHTTP {
		return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(w, r.Body)
		}))
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
	}
}

func socketForTest() (int, error) {
	return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, ProtocolMPTCP)
}

// unusual makes a server of Go's net package a server of this kind.
func unusual(kind string, listener int) error {
	switch kind {
	case twoEpolls:
		epolls, err := descriptorsOf(os.Getpid(), "anon_inode:[eventpoll]")
		if err != nil {
			return err
		}
		_, err = unix.Dup(epolls[0])
		return err
	case twoListeners:
		return unix.Dup3(listener, highListener, unix.O_CLOEXEC)
	case closedWatch:
		return watchClosed(listener)
	case deferring:
		err := unix.SetsockoptInt(listener, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 60)
		return errors.Join(err, unix.Listen(listener, 4096)) // a longer queue
	}
	return nil
}

// watchClosed adds a watch of a duplicate of a listener, and closes the duplicate. The watch stays.
func watchClosed(listener int) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	duplicate, err := unix.Dup(listener)
	if err != nil {
		return err
	}
	err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, duplicate, &unix.EpollEvent{Events: unix.EPOLLIN})
	return errors.Join(err, unix.Close(duplicate))
}

func acceptForTest(fd int) error {
	for {
		one, _, err := unix.Accept(fd)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		go func() {
			conn := os.NewFile(uintptr(one), "connection")
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}

// startServer starts this program as a server and returns its pid and address.
func startServer(t *testing.T, kind string) (pid int, address string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envServer+"="+kind)
	cmd.Stderr = os.Stderr
	if kind == abroad {
		fd, err := socketForTest()
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), "listener")
		defer file.Close()
		cmd.ExtraFiles = []*os.File{file} // abroadSocket
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, "127.0.0.1:" + strings.TrimSpace(port)
}

// clients connect again and again until they are told to stop.
type clients struct {
	good, bad atomic.Int64
	first     atomic.Pointer[error]
	ended     chan struct{}
	running   sync.WaitGroup
}

func startClients(address string) *clients {
	c := &clients{ended: make(chan struct{})}
	for i := range 8 {
		dialer := net.Dialer{Timeout: 20 * time.Second}
		dialer.SetMultipathTCP(i%2 == 0)
		c.running.Go(func() {
			for {
				select {
				case <-c.ended:
					return
				default:
				}
				if err := echoOnce(dialer, address); err != nil {
					c.bad.Add(1)
					c.first.CompareAndSwap(nil, &err)
				} else {
					c.good.Add(1)
				}
			}
		})
	}
	return c
}

func echoOnce(dialer net.Dialer, address string) error {
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && line != "hello\n" {
		err = fmt.Errorf("the server answers %q", line)
	}
	return err
}

// more waits until n more connections have been served.
func (c *clients) more(t *testing.T, n int64) {
	t.Helper()
	for want := c.good.Load() + n; c.good.Load() < want; {
		if err := c.first.Load(); err != nil {
			t.Fatalf("a client: %v", *err)
		}
		select {
		case <-t.Context().Done():
			t.Fatal("clients are not served")
		case <-time.After(time.Millisecond):
		}
	}
}

// TestReplaceListener replaces an MPTCP listener by a TCP listener while clients connect all the time, with
// and without MPTCP, and checks that none of them sees an error.
func TestReplaceListener(t *testing.T) {
	for _, kind := range []string{byGo, blocking, twoEpolls} {
		t.Run(kind, func(t *testing.T) {
			pid, address := startServer(t, kind)
			fds, inode := listenerOf(t, pid)
			c := startClients(address)
			stop := sync.OnceFunc(func() { close(c.ended); c.running.Wait() })
			defer stop()
			c.more(t, 200)
			if err := ReplaceListener(t.Context(), pid, fds[0], alone(pid)); err != nil {
				t.Fatal(err)
			}
			c.more(t, 500)
			stop()
			if n := c.bad.Load(); n > 0 {
				t.Errorf("%d clients saw an error: %v", n, *c.first.Load())
			}
			again, other := listenerOf(t, pid)
			if fmt.Sprint(again) != fmt.Sprint(fds) || other == inode {
				t.Errorf("descriptors %v of inode %d are %v of inode %d now", fds, inode, again, other)
			}
			checkReplaced(t, pid, fds[0])
		})
	}
}

// alone lists one process.
func alone(pids ...int) func() ([]int, error) { return func() ([]int, error) { return pids, nil } }

// checkReplaced looks at the new listener's options.
func checkReplaced(t *testing.T, pid, fd int) {
	t.Helper()
	checkReplacedWith(t, pid, fd, 0)
}

// checkReplacedWith is checkReplaced for a listener whose SO_REUSEPORT is known.
func checkReplacedWith(t *testing.T, pid, fd, reuse int) {
	t.Helper()
	pidfd, err := kernel.PidfdOpen(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	socket, err := kernel.PidfdGetfd(pidfd, fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	for option, want := range map[int]int{
		unix.SO_PROTOCOL: unix.IPPROTO_TCP, unix.SO_ACCEPTCONN: 1, unix.SO_REUSEADDR: 1, unix.SO_KEEPALIVE: 1,
		unix.SO_REUSEPORT: reuse, unix.SO_RCVBUF: 100_000,
	} {
		if got, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, option); err != nil || got != want {
			t.Errorf("option %d: %d, %v, want %d", option, got, err, want)
		}
	}
	info, err := unix.GetsockoptTCPInfo(socket, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.Sacked != 77 {
		t.Errorf("backlog %d, %v, want 77", info.Sacked, err)
	}
}

// listenerOf finds the listening socket of a process.
func listenerOf(t *testing.T, pid int) (fds []int, inode uint64) {
	t.Helper()
	pidfd, err := kernel.PidfdOpen(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	for fd := range highListener + 1 {
		socket, err := kernel.PidfdGetfd(pidfd, fd)
		if err != nil {
			continue
		}
		listening, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		var status unix.Stat_t
		if err == nil && listening == 1 && unix.Fstat(socket, &status) == nil {
			fds, inode = append(fds, fd), status.Ino
		}
		_ = unix.Close(socket)
	}
	if len(fds) == 0 {
		t.Fatal("no listener")
	}
	return fds, inode
}

// TestReplaceListenerShared refuses a listener that shares its port with another one. Once the other
// listener is gone and only SO_REUSEPORT is left, as after the death of an agent, the listener is replaced.
func TestReplaceListenerShared(t *testing.T) {
	pid, address := startServer(t, byGo)
	fds, _ := listenerOf(t, pid)
	setOption(t, pid, fds[0], unix.SO_REUSEPORT)
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	other, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	err = ReplaceListener(t.Context(), pid, fds[0], alone(pid))
	if err == nil || !strings.Contains(err.Error(), "SO_REUSEPORT") {
		t.Errorf("ReplaceListener: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := echoOnce(net.Dialer{Timeout: time.Minute}, address); err != nil {
		t.Error(err)
	}
	if err := ReplaceListener(t.Context(), pid, fds[0], alone(pid)); err != nil {
		t.Fatal(err)
	}
	checkReplacedWith(t, pid, fds[0], 1)
}

// TestReplaceListenerReuse checks that a listener keeps the option by which a server can listen again as it
// reloads, whether the listener is replaced or the replacement fails.
func TestReplaceListenerReuse(t *testing.T) {
	pid, address := startServer(t, byGo)
	fds, _ := listenerOf(t, pid)
	setOption(t, pid, fds[0], unix.SO_REUSEPORT)
	r := &replacement{pid: pid, procs: alone(pid)}
	if err := errors.Join(r.open(fds[0]), r.listen(), r.abandon()); err != nil {
		t.Fatal(err)
	}
	if value, err := unix.GetsockoptInt(r.old, unix.SOL_SOCKET, unix.SO_REUSEPORT); err != nil || value != 1 {
		t.Errorf("SO_REUSEPORT of the old listener: %d, %v", value, err)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceListener(t.Context(), pid, fds[0], alone(pid)); err != nil {
		t.Fatal(err)
	}
	checkReplacedWith(t, pid, fds[0], 1)
	if err := echoOnce(net.Dialer{Timeout: time.Minute}, address); err != nil {
		t.Error(err)
	}
}

// setOption sets an option of a socket of a process.
func setOption(t *testing.T, pid, fd, option int) {
	t.Helper()
	pidfd, err := kernel.PidfdOpen(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	socket, err := kernel.PidfdGetfd(pidfd, fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, option, 1); err != nil {
		t.Fatal(err)
	}
}

// TestReplaceListenerOfTwo leaves a listener alone that another process has open as well. The server
// answers while ReplaceListener waits for that process, and afterwards.
func TestReplaceListenerOfTwo(t *testing.T) {
	pid, address := startServer(t, byGo)
	fds, inode := listenerOf(t, pid)
	pidfd, err := kernel.PidfdOpen(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	mine, err := kernel.PidfdGetfd(pidfd, fds[0])
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mine)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- ReplaceListener(ctx, pid, fds[0], alone(pid, os.Getpid())) }()
	for range 300 {
		if err := echoOnce(net.Dialer{Timeout: time.Minute}, address); err != nil {
			t.Fatalf("while the replacement waits: %v", err)
		}
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("ReplaceListener: %v", err)
	}
	if again, is := listenerOf(t, pid); fmt.Sprint(again) != fmt.Sprint(fds) || is != inode {
		t.Errorf("descriptors %v of inode %d are %v of inode %d now", fds, inode, again, is)
	}
	if err := echoOnce(net.Dialer{Timeout: time.Minute}, address); err != nil {
		t.Error(err)
	}
}

func TestParseEpollWatch(t *testing.T) {
	line := "tfd:       11 events: 80002019 data: 7f3a00000005  pos:0 ino:1a2b sdev:8\n"
	got, inode, ok := parseEpollWatch(line)
	want := epollWatch{fd: 11, events: 0x80002019, data: 0x7f3a00000005}
	if !ok || got != want || inode != 0x1a2b {
		t.Errorf("%+v, inode %x, %v", got, inode, ok)
	}
	if _, _, ok := parseEpollWatch("flags:\t02\n"); ok {
		t.Error("flags are a watch")
	}
}
