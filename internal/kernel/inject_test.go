package kernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

// TestOpenUserfault opens many descriptors in programs of all kinds, and checks that they do not notice.
func TestOpenUserfault(t *testing.T) {
	for _, kind := range []string{"main-spin", "main-wait", "main-write", "main-rseq", "main-spin-alarm",
		"block-write-alarm", "wait-spin-block-churn", "block-write", "spin-nobody-filtered"} {
		t.Run(kind, func(t *testing.T) {
			p := kerneltest.StartProgram(t, kind)
			longest, total := time.Duration(0), time.Duration(0)
			times := 60
			if testing.Short() {
				times = 20
			}
			for range times {
				fd, stopped, err := OpenUserfault(p.PID())
				if testing.Short() && errors.Is(err, ErrUntraceable) {
					continue // it did not stop in time: an emulated processor is slow
				}
				if err != nil {
					t.Fatal(err)
				}
				longest, total = max(longest, stopped), total+stopped
				w, err := NewWriteProtect(fd)
				if err != nil {
					t.Fatal(err)
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}
			p.GoesOn("attached to")
			t.Logf("stopped %s on average, at most %s", total/time.Duration(times), longest)
		})
	}
}

const envDie = "GODWIT_TEST_DIE"

// TestDyingTracer is not a test by itself: it is the tracer that TestTracerDies starts and that kills
// itself.
func TestDyingTracer(t *testing.T) {
	var pid, at int
	if _, err := fmt.Sscanf(os.Getenv(envDie), "%d %d", &pid, &at); err != nil {
		return
	}
	runtime.LockOSThread()
	tr := &Tracee{PID: pid, before: func() {
		if at--; at == 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}}
	if _, err := tr.openUserfault(); err != nil {
		t.Fatal(err)
	}
	if tr.heal == (healing{}) {
		t.Fatalf("the thread was not protected; what was found: %+v", tr.gadget)
	}
}

// TestTracerDies kills the tracer before each of its requests in turn, and checks that the process
// continues undisturbed.
func TestTracerDies(t *testing.T) {
	for _, kind := range []string{"main-spin", "main-wait", "main-rseq", "block-write", "spin-churn",
		"main-spin-alarm", "static-main-spin", "go"} {
		t.Run(kind, func(t *testing.T) {
			p := kerneltest.StartProgram(t, kind)
			for at := 1; ; at++ {
				killed := dieAt(t, p, at)
				if killed && (kind == "static-main-spin" || runtime.GOARCH != "amd64") {
					// the way back may not close the descriptor
					p.Proceeds(fmt.Sprintf("tracer killed before request %d", at))
					continue
				}
				p.GoesOn(fmt.Sprintf("tracer killed before request %d", at))
				if !killed {
					t.Logf("%d requests", at-1)
					return
				}
			}
		})
	}
}

// TestTracerDiesAgain kills two tracers one after the other. The second dies before the thread has got a
// processor (it is stopped meanwhile), so the registers that it saved are those of the first one's way
// back: the thread goes both ways.
func TestTracerDiesAgain(t *testing.T) {
	for _, kind := range []string{"main-spin-alone", "main-wait-alone"} {
		t.Run(kind, func(t *testing.T) {
			p := kerneltest.StartProgram(t, kind)
			for at, killed := 1, true; killed; at++ {
				if err := unix.Kill(p.PID(), unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				dieAt(t, p, at)
				killed = dieAt(t, p, at)
				if err := unix.Kill(p.PID(), unix.SIGCONT); err != nil {
					t.Fatal(err)
				}
				if killed && runtime.GOARCH != "amd64" {
					// the way back may not close the descriptor
					p.Proceeds(fmt.Sprintf("two tracers killed before request %d", at))
					continue
				}
				p.GoesOn(fmt.Sprintf("two tracers killed before request %d", at))
			}
		})
	}
}

// dieAt runs a tracer that kills itself before a request, and reports whether it got that far.
func dieAt(t *testing.T, p *kerneltest.Program, at int) bool {
	t.Helper()
	tracer := exec.Command("/proc/self/exe", "-test.run=^TestDyingTracer$")
	tracer.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", envDie, p.PID(), at))
	return killsItself(t, tracer)
}

// killsItself runs a program that either succeeds or kills itself, and reports which.
func killsItself(t *testing.T, program *exec.Cmd) bool {
	t.Helper()
	out, err := program.CombinedOutput()
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.ProcessState.Sys().(interface{ Signaled() bool }).Signaled()
	if err != nil && !killed {
		t.Fatalf("%v\n%s", err, out)
	}
	return killed
}

// TestVfork attaches to a thread that does not stop, because it waits for a child of vfork(2), and checks
// that it is left alone and continues when the child has ended.
func TestVfork(t *testing.T) {
	p := kerneltest.StartProgram(t, "main-parent")
	for refused, deadline := 0, time.Now().Add(time.Minute); refused < 2; {
		p.Until(func() string {
			if process, err := ReadProcess(p.PID()); err != nil || process.State != 'D' {
				return fmt.Sprintf("the parent does not wait: %c, %v", process.State, err)
			}
			return ""
		})
		fd, _, err := OpenUserfault(p.PID())
		switch {
		case err == nil: // the child has just ended
			_ = unix.Close(fd)
		case errors.Is(err, ErrUntraceable):
			refused++
		default:
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("attached to a thread that does not stop")
		}
		p.GoesOn("left alone")
	}
}

func TestUntraceable(t *testing.T) {
	p := kerneltest.StartProgram(t, "spin")
	tracer := make(chan error)
	release := make(chan struct{})
	go func() {
		runtime.LockOSThread() // a tracer is a thread
		defer runtime.UnlockOSThread()
		t := &Tracee{PID: p.PID(), TID: p.PID()}
		tracer <- t.stop()
		<-release
		tracer <- t.Release()
	}()
	if err := <-tracer; err != nil {
		t.Fatal(err)
	}
	_, _, err := OpenUserfault(p.PID())
	if !errors.Is(err, ErrUntraceable) || !strings.Contains(err.Error(), " traces it") {
		t.Errorf("traced by another: %v", err)
	}
	close(release)
	<-tracer
}
