package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program is the workload of package memory's tests: it counts its work, and errors that it finds.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
	// ignored are the signals that the program ignores, as in /proc/PID/status: nohup(1), for example,
	// starts programs like that.
	ignored string
}

// envWorkloads names a directory in which the workloads are built already, for machines without compilers.
const envWorkloads = "GODWIT_TEST_WORKLOADS"

// programs are in this directory, as seen from a package of the kernel: there are such packages on two levels.
func programs() string {
	const dir = "../memory/testdata"
	if _, err := os.Stat(dir); err != nil {
		return "../" + dir
	}
	return dir
}

// workload builds the program for this kind and returns its path.
func workload(t *testing.T, kind string) string {
	t.Helper()
	name := "workload"
	build := exec.Command("gcc", "-O1", "-pthread", programs()+"/workload/workload.c")
	switch {
	case kind == "go":
		name = "workload-go"
		build = exec.Command("go", "build", programs()+"/workload32")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
	case strings.HasPrefix(kind, "static-"):
		name = "workload-static"
		build.Args = slices.Insert(build.Args, 1, "-static")
	}
	if built := os.Getenv(envWorkloads); built != "" {
		return filepath.Join(built, name)
	}
	path := filepath.Join(t.TempDir(), name)
	build.Args = slices.Insert(build.Args, len(build.Args)-1, "-o", path)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func startProgram(t *testing.T, kind string) *program {
	t.Helper()
	threads := "2"
	if strings.HasSuffix(kind, "-alone") { // the first thread does the work
		threads = "1"
	}
	p := &program{t: t, cmd: exec.Command(workload(t, kind), kind, "1", threads)}
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	p.out = bufio.NewReader(out)
	if line, err := p.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the workload says %q, %v", line, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "SigIgn:")
	p.ignored, _, _ = strings.Cut(strings.TrimSpace(after), "\n")
	return p
}

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) status() (bad, done int) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in)
	line := ""
	if err == nil {
		line, err = p.out.ReadString('\n')
	}
	if err == nil {
		_, err = fmt.Sscanf(line, "bad %d done %d\n", &bad, &done)
	}
	if err != nil {
		time.Sleep(10 * time.Millisecond)
		p.t.Fatalf("the workload does not answer: %v; it has ended: %v", err, p.cmd.Wait())
	}
	return bad, done
}

// proceeds checks that the program works on, and has found no errors.
func (p *program) proceeds(what string) {
	p.t.Helper()
	_, was := p.status()
	p.until(func() string {
		bad, done := p.status()
		if bad > 0 {
			p.t.Fatalf("%s: %d things are wrong", what, bad)
		}
		if done <= was+1 {
			return what + ": it does not go on"
		}
		return ""
	})
}

// goesOn also checks that nothing was left in the program.
func (p *program) goesOn(what string) {
	p.t.Helper()
	p.proceeds(what)
	p.until(func() string {
		if trace := p.trace(); trace != "" {
			return what + ": " + trace
		}
		return ""
	})
}

// until waits until wrong reports no error.
func (p *program) until(wrong func() string) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		what := wrong()
		if what == "" {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatal(what)
		}
	}
}

// trace returns descriptors, signals and tracer that were left.
func (p *program) trace() string {
	p.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid()))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range entries {
		if target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.pid(),
			e.Name())); strings.Contains(target, "userfault") {
			return fmt.Sprintf("descriptor %s is %s", e.Name(), target)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid()))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if (key == "SigBlk" || key == "TracerPid") && strings.Trim(value, "0") != "" || key == "SigIgn" &&
			value != p.ignored {
			return fmt.Sprintf("%s is %s", key, value)
		}
	}
	return ""
}

// TestOpenUserfault opens many descriptors in programs of all kinds, and checks that they do not notice.
func TestOpenUserfault(t *testing.T) {
	for _, kind := range []string{"main-spin", "main-wait", "main-write", "main-rseq", "main-spin-alarm",
		"block-write-alarm", "wait-spin-block-churn", "block-write", "spin-nobody-filtered"} {
		t.Run(kind, func(t *testing.T) {
			p := startProgram(t, kind)
			longest, total := time.Duration(0), time.Duration(0)
			times := 60
			if testing.Short() {
				times = 20
			}
			for range times {
				fd, stopped, err := OpenUserfault(p.pid())
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
			p.goesOn("attached to")
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
	tr := &tracee{pid: pid, before: func() {
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
			p := startProgram(t, kind)
			for at := 1; ; at++ {
				killed := dieAt(t, p, at)
				if killed && (kind == "static-main-spin" || runtime.GOARCH != "amd64") {
					// the way back may not close the descriptor
					p.proceeds(fmt.Sprintf("tracer killed before request %d", at))
					continue
				}
				p.goesOn(fmt.Sprintf("tracer killed before request %d", at))
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
			p := startProgram(t, kind)
			for at, killed := 1, true; killed; at++ {
				if err := unix.Kill(p.pid(), unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				dieAt(t, p, at)
				killed = dieAt(t, p, at)
				if err := unix.Kill(p.pid(), unix.SIGCONT); err != nil {
					t.Fatal(err)
				}
				if killed && runtime.GOARCH != "amd64" {
					// the way back may not close the descriptor
					p.proceeds(fmt.Sprintf("two tracers killed before request %d", at))
					continue
				}
				p.goesOn(fmt.Sprintf("two tracers killed before request %d", at))
			}
		})
	}
}

// dieAt runs a tracer that kills itself before a request, and reports whether it got that far.
func dieAt(t *testing.T, p *program, at int) bool {
	t.Helper()
	tracer := exec.Command("/proc/self/exe", "-test.run=^TestDyingTracer$")
	tracer.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", envDie, p.pid(), at))
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
	p := startProgram(t, "main-parent")
	for refused, deadline := 0, time.Now().Add(time.Minute); refused < 2; {
		p.until(func() string {
			if process, err := ReadProcess(p.pid()); err != nil || process.State != 'D' {
				return fmt.Sprintf("the parent does not wait: %c, %v", process.State, err)
			}
			return ""
		})
		fd, _, err := OpenUserfault(p.pid())
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
		p.goesOn("left alone")
	}
}

func TestUntraceable(t *testing.T) {
	p := startProgram(t, "spin")
	tracer := make(chan error)
	release := make(chan struct{})
	go func() {
		runtime.LockOSThread() // a tracer is a thread
		defer runtime.UnlockOSThread()
		t := &tracee{pid: p.pid(), tid: p.pid()}
		tracer <- t.stop()
		<-release
		tracer <- t.release()
	}()
	if err := <-tracer; err != nil {
		t.Fatal(err)
	}
	_, _, err := OpenUserfault(p.pid())
	if !errors.Is(err, ErrUntraceable) || !strings.Contains(err.Error(), " traces it") {
		t.Errorf("traced by another: %v", err)
	}
	close(release)
	<-tracer
}
