package kerneltest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Program is the workload of package memory's tests: it counts its work, and errors that it finds.
type Program struct {
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

// programs are in this directory, as seen from a package of the kernel: there are such packages on two
// levels.
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

// StartProgram builds the workload of this kind, and starts it.
func StartProgram(t *testing.T, kind string) *Program {
	t.Helper()
	threads := "2"
	if strings.HasSuffix(kind, "-alone") { // the first thread does the work
		threads = "1"
	}
	p := &Program{t: t, cmd: exec.Command(workload(t, kind), kind, "1", threads)}
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
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "SigIgn:")
	p.ignored, _, _ = strings.Cut(strings.TrimSpace(after), "\n")
	return p
}

// PID returns the PID of the program.
func (p *Program) PID() int { return p.cmd.Process.Pid }

func (p *Program) status() (bad, done int) {
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
		p.t.Fatalf("the workload does not answer: %v; it has ended: %v", err, p.cmd.Wait())
	}
	return bad, done
}

// Proceeds checks that the program works on, and has found no errors.
func (p *Program) Proceeds(what string) {
	p.t.Helper()
	_, was := p.status()
	p.Until(func() string {
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

// GoesOn also checks that nothing was left in the program.
func (p *Program) GoesOn(what string) {
	p.t.Helper()
	p.Proceeds(what)
	p.Until(func() string {
		if trace := p.trace(); trace != "" {
			return what + ": " + trace
		}
		return ""
	})
}

// Until waits until wrong reports no error.
func (p *Program) Until(wrong func() string) {
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
func (p *Program) trace() string {
	p.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range entries {
		if target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.PID(),
			e.Name())); strings.Contains(target, "userfault") {
			return fmt.Sprintf("descriptor %s is %s", e.Name(), target)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
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
