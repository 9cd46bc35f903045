package kernel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

const envAttach = "GODWIT_TEST_ATTACH"

// TestAttachingTracer is not a test by itself: it is the tracer that TestTracerDiesAnytime starts and
// kills.
func TestAttachingTracer(t *testing.T) {
	var pid int
	if _, err := fmt.Sscanf(os.Getenv(envAttach), "%d", &pid); err != nil {
		return
	}
	fmt.Println("ready")
	for {
		fd, _, err := OpenUserfault(pid)
		if err == nil {
			err = unix.Close(fd)
		}
		if err != nil && !errors.Is(err, ErrUntraceable) {
			t.Fatal(err)
		}
	}
}

// TestTracerDiesAnytime kills tracers that attach again and again, at random moments, while the process
// gets signals or is stopped and continued. A system call with a timeout that is interrupted several times
// may fail with EINTR then (afterRestart), so these programs make none.
func TestTracerDiesAnytime(t *testing.T) {
	times := 8
	if testing.Short() {
		times = 3
	}
	for _, kind := range []string{"main-spin-alarm", "main-rseq", "main-write-churn", "main-spin stopped",
		"block-write-alarm stopped"} {
		t.Run(kind, func(t *testing.T) {
			kind, stops := strings.CutSuffix(kind, " stopped")
			p := kerneltest.StartProgram(t, kind)
			for i := range times {
				tracer := startTracer(t, p)
				for until := time.Now().Add(
					time.Duration(rand.IntN(20_000)) * time.Microsecond); time.Now().Before(until); {
					if stops {
						_ = unix.Kill(p.PID(), unix.SIGSTOP)
						_ = unix.Kill(p.PID(), unix.SIGCONT)
					}
					time.Sleep(100 * time.Microsecond)
				}
				_ = tracer.Process.Kill()
				_ = tracer.Wait()
				p.Proceeds(fmt.Sprintf("tracer %d killed", i+1))
			}
			fd, _, err := OpenUserfault(p.PID()) // removes what the others may have left
			if err != nil {
				t.Fatal(err)
			}
			_ = unix.Close(fd)
			p.GoesOn("after all")
		})
	}
}

func startTracer(t *testing.T, p *kerneltest.Program) *exec.Cmd {
	t.Helper()
	tracer := exec.Command("/proc/self/exe", "-test.run=^TestAttachingTracer$")
	tracer.Env = append(os.Environ(), fmt.Sprintf("%s=%d", envAttach, p.PID()))
	out, err := tracer.StdoutPipe()
	if err == nil {
		err = tracer.Start()
	}
	if err == nil {
		_, err = fmt.Fscanln(out, new(string))
	}
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

const envFilter = "GODWIT_TEST_FILTER"

// TestFilteredTracer is not a test by itself: it is a tracer with a seccomp filter, which may not suspend
// other processes' filters.
func TestFilteredTracer(t *testing.T) {
	var pid int
	if _, err := fmt.Sscanf(os.Getenv(envFilter), "%d", &pid); err != nil {
		return
	}
	if err := filterSelf(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := OpenUserfault(pid); !errors.Is(err, ErrUntraceable) ||
		!strings.Contains(err.Error(), "seccomp") {
		t.Errorf("attached: %v", err)
	}
}

// filterSelf gives all threads of this process a filter that allows everything.
func filterSelf() error {
	const setModeFilter, tsync, allow = 1, 1, 0x7fff0000
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := []unix.SockFilter{{Code: 6, K: allow}}
	program := unix.SockFprog{Len: 1, Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, tsync, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return errno
	}
	return nil
}

// TestFilterKills attaches to a program that is killed for userfaultfd(2): with a tracer that may suspend
// the filter, and with one that may not and must leave the program alone.
func TestFilterKills(t *testing.T) {
	p := kerneltest.StartProgram(t, "main-spin-deadly")
	fd, _, err := OpenUserfault(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	p.GoesOn("attached to")
	tracer := exec.Command("/proc/self/exe", "-test.run=^TestFilteredTracer$")
	tracer.Env = append(os.Environ(), fmt.Sprintf("%s=%d", envFilter, p.PID()))
	if out, err := tracer.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	p.GoesOn("left alone")
}
