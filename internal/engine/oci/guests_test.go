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

// TestGuests: who is in a container's namespace and not of it is found.
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
