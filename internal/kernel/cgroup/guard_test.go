package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

const envGuard = "GODWIT_TEST_GUARD"

// TestGuardedProcess acts as the process that a guard watches, if the environment says so.
func TestGuardedProcess(t *testing.T) {
	dir := os.Getenv(envGuard)
	if dir == "" {
		return
	}
	group, err := At(dir)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := StartGuard(group)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("guard", guard.PID())
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	switch strings.TrimSpace(line) {
	case "disarm":
		if err := guard.Disarm(); err != nil {
			t.Fatal(err)
		}
		os.Exit(0)
	case "panic":
		go func() { panic("a bug") }()
		select {}
	}
}

// guarded starts a process with a guard, and a pipe that both hold.
func guarded(t *testing.T, dir string) (cmd *exec.Cmd, stdin io.Writer, guard int, held *os.File) {
	t.Helper()
	held, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() })
	defer theirs.Close()
	cmd = exec.Command("/proc/self/exe", "-test.run=^TestGuardedProcess$")
	cmd.Env = append(os.Environ(), envGuard+"="+dir)
	cmd.ExtraFiles = []*os.File{theirs}
	if stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := fmt.Fscanf(out, "guard %d\n", &guard); err != nil {
		t.Fatalf("the guarded process: %v", err)
	}
	return cmd, stdin, guard, held
}

// TestGuard ends a process in several ways, and checks that what it held is closed only when the processes
// of the group are gone.
func TestGuard(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		for _, end := range []string{"killed", "panic", "returns"} {
			t.Run(version+" "+end, func(t *testing.T) {
				group := newCounting(t, mount)
				for _, pid := range group.pids { // version 1 lists zombies
					go func() { _, _ = unix.Wait4(pid, nil, 0, nil) }()
				}
				cmd, stdin, _, held := guarded(t, group.FreezerDir())
				if end == "killed" {
					if err := cmd.Process.Kill(); err != nil {
						t.Fatal(err)
					}
				} else if _, err := fmt.Fprintln(stdin, end); err != nil {
					t.Fatal(err)
				}
				if err := held.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
					t.Fatal(err)
				}
				if _, err := held.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Fatalf("the pipe that the process held: %v", err)
				}
				victims := group.pids
				if version == "version 1" {
					victims = victims[:1] // in a container the first process takes the others with it
				}
				for _, pid := range victims {
					if p, err := kernel.ReadProcess(pid); err == nil && p.State != 'Z' {
						t.Errorf("process %d lives: %c", pid, p.State)
					}
				}
			})
		}
	}
}

func TestGuardDisarmed(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			group := newCounting(t, mount)
			cmd, stdin, guard, _ := guarded(t, group.FreezerDir())
			if _, err := fmt.Fprintln(stdin, "disarm"); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(guard, 0); !errors.Is(err, unix.ESRCH) {
				t.Errorf("the guard: %v", err)
			}
			for _, pid := range group.pids {
				if p, err := kernel.ReadProcess(pid); err != nil || p.State == 'Z' {
					t.Errorf("process %d: %+v, %v", pid, p, err)
				}
			}
		})
	}
}
