package inject

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// TestReplaceListenerFails makes the exchange fail at the last descriptor: a limit forbids its number. The
// server keeps the old listener as it was, and gets the new one when the limit is gone.
func TestReplaceListenerFails(t *testing.T) {
	pid, address := startServer(t, twoListeners)
	r := &replacement{pid: pid}
	fds, inode := listenerOf(t, pid)
	r.status.Ino = inode
	was, err := r.places()
	if err != nil || len(was.fds) < 2 || was.fds[0] == highListener || len(was.watches) == 0 {
		t.Fatalf("%+v, %v", was, err)
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: highListener, Max: limit.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &low, nil); err != nil {
		t.Fatal(err)
	}
	err = ReplaceListener(t.Context(), pid, fds[0], alone(pid))
	if err == nil || !strings.Contains(err.Error(), "dup3") || strings.Contains(err.Error(), "not back") {
		t.Errorf("ReplaceListener: %v", err)
	}
	if is, err := r.places(); err != nil || !is.equal(was) {
		t.Errorf("%+v, %v; want %+v", is, err, was)
	}
	serves(t, pid, address)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceListener(t.Context(), pid, fds[0], alone(pid)); err != nil {
		t.Fatal(err)
	}
	serves(t, pid, address)
	checkReplaced(t, pid, fds[0])
}

// TestReplaceListenerRefuses refuses listeners that cannot be replaced, before anything is changed.
func TestReplaceListenerRefuses(t *testing.T) {
	for kind, why := range map[string]string{
		closedWatch: "which is closed",
		abroad:      "different network namespace",
	} {
		t.Run(kind, func(t *testing.T) {
			pid, address := startServer(t, kind)
			fds, inode := listenerOf(t, pid)
			steps := 0
			r := &replacement{pid: pid, procs: alone(pid), before: func() { steps++ }}
			err := replaceListener(t.Context(), r, fds[0])
			if err == nil || !strings.Contains(err.Error(), why) || steps != 0 {
				t.Errorf("%v after %d steps; want %q after none", err, steps, why)
			}
			if _, is := listenerOf(t, pid); is != inode {
				t.Errorf("the listener has inode %d, and had %d", is, inode)
			}
			if err := echoOnce(net.Dialer{Timeout: time.Minute}, address); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReplaceListenerAmongMany gives up if other processes have too many descriptors to check in a moment.
func TestReplaceListenerAmongMany(t *testing.T) {
	pid, address := startServer(t, byGo)
	fds, inode := listenerOf(t, pid)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for range maxOthers {
		fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	err = ReplaceListener(t.Context(), pid, fds[0], alone(pid, os.Getpid()))
	if !errors.Is(err, ErrListenerBusy) || !strings.Contains(err.Error(), "descriptors") {
		t.Errorf("ReplaceListener: %v", err)
	}
	if _, is := listenerOf(t, pid); is != inode {
		t.Errorf("the listener has inode %d, and had %d", is, inode)
	}
	serves(t, pid, address)
}

// TestPlaceDoesNotWait meets a full socket where the process had its end of the pair, as if another process
// had put it there. The caller gets an error, and does not wait for that socket's reader.
func TestPlaceDoesNotWait(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	for err = nil; err == nil; {
		err = unix.Sendmsg(ends[0], []byte{0}, nil, nil, unix.MSG_DONTWAIT)
	}
	result := make(chan error, 1)
	go func() { result <- sendListener(ends[0], ends[1]) }()
	select {
	case err := <-result:
		if !errors.Is(err, unix.EAGAIN) {
			t.Errorf("sendListener: %v, want EAGAIN", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("sendListener waits")
	}
}

// serves checks that a server answers clients with and without MPTCP, and has one listener after that.
func serves(t *testing.T, pid int, address string) {
	t.Helper()
	for i := range 6 {
		dialer := net.Dialer{Timeout: 20 * time.Second}
		dialer.SetMultipathTCP(i%2 == 0)
		if err := echoOnce(dialer, address); err != nil {
			t.Fatal(err)
		}
	}
	w, err := kernel.OpenTCPWatch(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	deadline := time.Now().Add(time.Minute)
	for n := 0; n != 1; time.Sleep(time.Millisecond) {
		n, err = w.Listeners(netip.MustParseAddrPort(address))
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d listeners, %v", n, err)
		}
	}
}

// TestReplaceListenerHalfOpen replaces a listener while clients always have half-open connections. Only the
// first of them delay the exchange, and all of them are served.
func TestReplaceListenerHalfOpen(t *testing.T) {
	pid, address := startServer(t, deferring)
	fds, _ := listenerOf(t, pid)
	var conns []net.Conn
	dial := func() {
		conn, err := net.DialTimeout("tcp", address, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn)
	}
	const hello = "hello"
	open := func(conn net.Conn) {
		if _, err := fmt.Fprint(conn, hello); err != nil {
			t.Fatal(err)
		}
	}
	const atOnce = 64 // reading the table of connections takes longer than one of them lasts
	for range atOnce {
		dial()
	}
	result := make(chan error, 1)
	go func() { result <- ReplaceListener(t.Context(), pid, fds[0], alone(pid)) }()
	for replaced := false; !replaced; {
		dial()
		open(conns[len(conns)-1-atOnce])
		select {
		case err := <-result:
			if replaced = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	for _, conn := range conns[len(conns)-atOnce:] {
		open(conn)
	}
	for _, conn := range conns {
		if _, err := io.ReadFull(conn, make([]byte, len(hello))); err != nil {
			t.Error(err)
		}
	}
}

// TestReplaceListenerHTTP replaces the listener of an HTTP server under load, with a connection for each
// request. The server answers every request.
func TestReplaceListenerHTTP(t *testing.T) {
	pid, address := startServer(t, byHTTP)
	fds, _ := listenerOf(t, pid)
	const askers, requests = 16, 400
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	var asking sync.WaitGroup
	var answered atomic.Int64
	begun := make(chan struct{})
	for range askers {
		asking.Go(func() {
			for i := range requests {
				body := fmt.Sprint("request ", i)
				response, err := client.Post("http://"+address, "text/plain", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					continue
				}
				answer, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if err != nil || string(answer) != body {
					t.Errorf("%q, %v", answer, err)
				}
				if answered.Add(1) == askers*requests/4 {
					close(begun)
				}
			}
		})
	}
	<-begun
	err := ReplaceListener(t.Context(), pid, fds[0], alone(pid))
	t.Logf("replaced after %d of %d requests", answered.Load(), askers*requests)
	asking.Wait()
	if err != nil {
		t.Fatal(err)
	}
	checkReplaced(t, pid, fds[0])
}

const envDieReplacing = "GODWIT_TEST_DIE_REPLACING"

// TestDyingReplacement is not a test by itself: TestReplacementDies starts it as a process, which kills
// itself.
func TestDyingReplacement(t *testing.T) {
	var pid, fd, at int
	if _, err := fmt.Sscanf(os.Getenv(envDieReplacing), "%d %d %d", &pid, &fd, &at); err != nil {
		return
	}
	r := &replacement{pid: pid, procs: alone(pid), before: func() {
		if at--; at == 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}}
	if err := replaceListener(t.Context(), r, fd); err != nil {
		t.Fatal(err)
	}
}

// TestReplacementDies kills the process that replaces a listener, before each of its steps in turn. The
// server still answers each time, and a listener that was not replaced can be replaced later.
func TestReplacementDies(t *testing.T) {
	for _, kind := range []string{byGo, blocking, twoListeners} {
		t.Run(kind, func(t *testing.T) {
			old, replaced := 0, 0
			for at, killed := 1, true; killed; {
				pid, address := startServer(t, kind)
				fds, inode := listenerOf(t, pid)
				for is := inode; killed && is == inode; at++ { // again, with what the last one has left
					killed = dieReplacing(t, pid, fds[0], at)
					serves(t, pid, address)
					var still []int
					still, is = listenerOf(t, pid)
					if slices.ContainsFunc(fds, func(fd int) bool { return !slices.Contains(still, fd) }) {
						t.Fatalf("killed before step %d: descriptors %v were %v", at, still, fds)
					}
					old++
				}
				old, replaced = old-1, replaced+1
			}
			t.Logf("%d times the old listener, %d times the new one", old, replaced)
		})
	}
}

// dieReplacing runs a process that kills itself before a step of the replacement. It reports whether the
// process got that far.
func dieReplacing(t *testing.T, pid, fd, at int) bool {
	t.Helper()
	tracer := exec.Command("/proc/self/exe", "-test.run=^TestDyingReplacement$")
	tracer.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d", envDieReplacing, pid, fd, at))
	return killsItself(t, tracer)
}
