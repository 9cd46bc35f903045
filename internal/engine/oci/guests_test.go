package oci

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestGuests checks that processes in a container's namespace that do not belong to the container are
// found.
func TestGuests(t *testing.T) {
	start := func(cmd *exec.Cmd) int {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd.Process.Pid
	}
	first := exec.Command("sleep", "60")
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	pid := start(first)
	if found, err := guests(pid, []int{pid}); err != nil || len(found) > 0 {
		t.Fatalf("%+v, %v", found, err)
	}
	start(exec.Command("nsenter", "--target", strconv.Itoa(pid), "--ipc", "sleep", "60"))
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		found, err := guests(pid, []int{pid})
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 1 && strings.Contains(found[0].Why, "ipc") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", found)
		}
	}
}

// TestGuestThatEnded checks that a process that has ended, and for which its parent has not waited yet, is
// no guest.
func TestGuestThatEnded(t *testing.T) {
	first := exec.Command("sh", "-c", "sleep 0 & exec sleep 60") // it waits for no child
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Process.Kill(); _ = first.Wait() })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		ended := exec.Command("pgrep", "--parent", strconv.Itoa(first.Process.Pid), "--runstates", "Z").Run()
		if ended == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(ended)
		}
	}
	if found, err := guests(first.Process.Pid, []int{first.Process.Pid}); err != nil || len(found) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}
