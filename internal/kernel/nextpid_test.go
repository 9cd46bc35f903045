package kernel

import (
	"bufio"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNextPID notices a process that ended long ago.
func TestNextPID(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo; while read line; do test -z \"$line\" || /bin/true; echo; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	answers := bufio.NewReader(out)
	next := func(order string) int {
		t.Helper()
		if order != "none" {
			if _, err := fmt.Fprintln(in, order); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := answers.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		number, err := NextPID(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return number
	}
	first := next("none")
	if again := next(""); again != first+1 {
		t.Errorf("nothing was forked, and after %d comes %d", first, again)
	}
	if again := next("fork"); again != first+3 {
		t.Errorf("a process was forked, and after %d comes %d", first+1, again)
	}
}
