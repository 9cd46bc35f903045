package examine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// full starts a shell that has no free descriptor.
func full(t *testing.T, limit string, before ...string) (pid int) {
	t.Helper()
	args := append(before, "sh", "-c", "echo ready; "+limit+"; ulimit -S -n 3; read end")
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	must(t, err)
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatal(line, err)
	}
	limited := func() bool {
		var now unix.Rlimit
		return unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &now) == nil && now.Cur == 3
	}
	for end := time.Now().Add(10 * time.Second); !limited(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it keeps its limit")
		}
	}
	return cmd.Process.Pid
}

// TestExamineUsedUp: a process that stays without a free descriptor is refused by name, with its limit and
// what helps. One that soon has a free descriptor is not, nor one that has just entered a sandbox like
// sshd's.
func TestExamineUsedUp(t *testing.T) {
	t.Parallel()
	stays, passes, authenticates := full(t, ":"), full(t, ":"),
		full(t, "ulimit -n 20", "setpriv", "--no-new-privs")
	soon := time.AfterFunc(usedUpPatience/2, func() {
		var limit unix.Rlimit
		err := unix.Prlimit(passes, unix.RLIMIT_NOFILE, nil, &limit)
		limit.Cur = 9
		if err = errors.Join(err, unix.Prlimit(passes, unix.RLIMIT_NOFILE, &limit, nil)); err != nil {
			t.Error(err)
		}
	})
	defer soon.Stop()
	found := usedUpIn(t, stays, passes, authenticates)
	if len(found) != 1 || found[0].PID != stays || !strings.Contains(found[0].String(), "(sh): no free "+
		"descriptor below its limit (RLIMIT_NOFILE 3)") {
		t.Fatalf("processes %d, %d, %d: %+v", stays, passes, authenticates, found)
	}
	// What it recommends helps.
	_, command, _ := strings.Cut(found[0].Remedy, "on this node: ")
	if want := fmt.Sprintf("prlimit --pid %d --nofile=67:", stays); !strings.HasPrefix(command, want) {
		t.Fatalf("remedy %q, want %q", found[0].Remedy, want)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if found := usedUpIn(t, stays); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

// usedUpIn is what Examine says of the processes' limits.
func usedUpIn(t *testing.T, pids ...int) []Problem {
	t.Helper()
	problems, err := Examine(t.Context(), Subject{PIDs: pids})
	must(t, err)
	other := func(p Problem) bool { return !strings.Contains(p.What, "RLIMIT_NOFILE") }
	return slices.DeleteFunc(problems, other)
}

// TestExamineUsedUpEnds: nobody waits for the watch who does not want the answer any more.
func TestExamineUsedUpEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	stays := full(t, ":")
	defer time.AfterFunc(usedUpPatience/10, cancel).Stop()
	if problems, err := Examine(ctx, Subject{PIDs: []int{stays}}); err == nil {
		t.Errorf("%+v", problems)
	}
}

// TestLeftToFreeze: a sandbox is sshd's only for as long as sshd lets a client authenticate.
func TestLeftToFreeze(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		full cgroup.UsedUpDescriptors
		want bool
	}{
		{cgroup.UsedUpDescriptors{Sandboxed: true, Age: time.Minute}, true},
		{cgroup.UsedUpDescriptors{Sandboxed: true, Age: time.Hour}, false},
		{cgroup.UsedUpDescriptors{Age: time.Minute}, false},
	} {
		if got := leftToFreeze(one.full); got != one.want {
			t.Errorf("%+v: %v", one.full, got)
		}
	}
}

// TestExamineReopened lists a descriptor that leads to another file by the time it is checked: a finding that
// mixes the two files is wrong for both. When a program starts, the Go runtime opens a file of /proc and then
// a file of /sys.
func TestExamineReopened(t *testing.T) {
	dir := t.TempDir()
	now, listed := filepath.Join(dir, "file"), filepath.Join(dir, "listed")
	pid := full(t, "mount -t tmpfs none "+dir+"; exec 9>"+now+"; mount -t tmpfs none "+dir, "unshare", "-m")
	x, err := newExamination(t.Context(), Subject{PIDs: []int{pid}})
	must(t, err)
	changed := 0
	for i := range x.tasks {
		for j := range x.tasks[i].fds {
			if d := &x.tasks[i].fds[j]; d.Target == now {
				d.Target = listed
				changed++
			}
		}
		found, err := x.process(&x.tasks[i])
		must(t, err)
		for _, f := range found {
			if strings.Contains(f.what, listed) {
				t.Errorf("process %d: %s", x.tasks[i].PID, f.what)
			}
		}
	}
	if changed == 0 {
		t.Errorf("no process has %s open", now)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
