package kernel

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

func TestReadProcess(t *testing.T) {
	p, err := ReadProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if p.Parent != os.Getppid() || p.StartTicks == 0 || p.Threads < 1 || p.State == 0 || p.Name == "" {
		t.Errorf("%+v", p)
	}
	if _, err := ReadProcess(1 << 22); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v, want %v", err, fs.ErrNotExist)
	}
}

// TestProcessName parses a confusing name.
func TestProcessName(t *testing.T) {
	stat := "7 (a) S 1 (b) R 5 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 99 0"
	p, err := parseProcess(7, stat, "NSpid:\t7\t1\nTracerPid:\t4\n")
	if err != nil {
		t.Fatal(err)
	}
	want := Process{PID: 7, NamespaceID: 1, Parent: 5, Name: "a) S 1 (b", State: 'R', StartTicks: 99,
		Threads: 3, Tracer: 4}
	if p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
}

func TestPidfd(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := PidfdOpen(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pidfd.Close() })
	if fd, err := PidfdGetfd(pidfd, 0); err != nil {
		t.Error(err)
	} else {
		_ = unix.Close(fd)
	}
	if _, err := PidfdGetfd(pidfd, 4711); !errors.Is(err, unix.EBADF) {
		t.Errorf("closed descriptor: %v, want %v", err, unix.EBADF)
	}
	alive, err := PidfdAlive(pidfd)
	if err != nil || !alive {
		t.Errorf("alive: %v, %v", alive, err)
	}
	if err := PidfdKill(pidfd); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if alive, err := PidfdAlive(pidfd); err != nil || alive {
		t.Errorf("alive after its end: %v, %v", alive, err)
	}
	if err := PidfdKill(pidfd); err != nil {
		t.Errorf("killed twice: %v", err)
	}
}

// TestRanAt checks that a process that started after a time did not run then, and that an ended process
// does not count.
func TestRanAt(t *testing.T) {
	self, err := ReadProcess(os.Getpid())
	kerneltest.Must(t, err)
	for now := self.StartTicks; now <= self.StartTicks; {
		now, err = Ticks()
		kerneltest.Must(t, err)
	}
	now, err := Ticks()
	kerneltest.Must(t, err)
	if !self.RanAt(now) || self.RanAt(self.StartTicks) {
		t.Errorf("%+v at %d", self, now)
	}
	self.State = 'Z'
	if self.RanAt(now) {
		t.Error("a process that has ended runs")
	}
}
