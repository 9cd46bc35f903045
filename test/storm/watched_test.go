package storm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMonitor runs two copies of a supposed container at once, each in its own cgroup, and then only one of
// them.
func TestMonitor(t *testing.T) {
	one := &subject{name: "watched"}
	first, second := watched(t, one, "first"), watched(t, one, "second")
	m := newMonitor([]*subject{one})
	eventually(t, "both copies to be seen", func() error {
		if m.look(); len(m.doubles()) == 0 {
			return errors.New("they are not")
		}
		return nil
	})
	freeze(t, second)
	m = newMonitor([]*subject{one})
	m.heals(true)
	eventually(t, "the first copy to be seen", func() error {
		if m.look(); m.ran[one.mark()].IsZero() {
			return errors.New("it is not")
		}
		return nil
	})
	if double := m.doubles(); len(double) > 0 {
		t.Errorf("a frozen copy is taken for one that runs: %v", double)
	}
	freeze(t, first)
	eventually(t, "the time to be counted for which it runs nowhere", func() error {
		if m.look(); m.nowhere[one.mark()] < 5*look {
			return errors.New("it is not")
		}
		return nil
	})
}

// TestLate: a process becomes a container's long after it was first seen.
func TestLate(t *testing.T) {
	one := &subject{name: "late"}
	pid := firstOf(t, watched(t, one, "late"))
	m := newMonitor([]*subject{one})
	m.known[pid] = &seenProcess{first: time.Now().Add(-time.Hour)}
	if m.find(); m.known[pid].subject != one.mark() {
		t.Error("it is not seen")
	}
}

// TestSlowEnvironment: the environment of a process cannot be read yet, and no look waits for that.
func TestSlowEnvironment(t *testing.T) {
	readable := make(chan struct{})
	whose := func() string {
		<-readable
		return "a container"
	}
	p := &seenProcess{first: time.Now()}
	p.ask(time.Now(), whose)
	p.ask(time.Now(), whose)
	if p.subject != "" {
		t.Errorf("it is taken for one of %q", p.subject)
	}
	close(readable)
	eventually(t, "the answer to be taken", func() error {
		if p.ask(time.Now(), whose); p.subject != "a container" {
			return errors.New("it is not")
		}
		return nil
	})
}

// firstOf returns the first process of a cgroup.
func firstOf(t *testing.T, group string) int {
	t.Helper()
	pids, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(pids)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestEnds kills a frozen process, which cannot end yet: none of its code will run.
func TestEnds(t *testing.T) {
	group := watched(t, &subject{name: "ends"}, "ends")
	pid := firstOf(t, group)
	freeze(t, group)
	if ends(pid) {
		t.Error("a frozen process is taken for one that ends")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !ends(pid) {
		t.Error("a process that was killed is taken for one that goes on")
	}
}

// watched starts a process with a container's mark, in a cgroup within this process's.
func watched(t *testing.T, one *subject, name string) (group string) {
	t.Helper()
	group = filepath.Join(freezer(os.Getpid()), "godwit-storm-"+strconv.Itoa(os.Getpid())+"-"+name)
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "infinity")
	cmd.Env = append(os.Environ(), variable+"="+one.mark())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		thaw(t, group)
		_ = cmd.Process.Kill() // it has not ended: no call has waited for it
		_ = cmd.Wait()         // reports that it was killed
		eventually(t, "the cgroup to be empty", func() error { return os.Remove(group) })
	})
	write(t, filepath.Join(group, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid))
	return group
}

// freeze freezes a cgroup of either version, and waits until it is.
func freeze(t *testing.T, group string) {
	t.Helper()
	if state := filepath.Join(group, "freezer.state"); isThere(state) {
		write(t, state, "FROZEN")
	} else {
		write(t, filepath.Join(group, "cgroup.freeze"), "1")
	}
	eventually(t, "a cgroup to be frozen", func() error {
		if !frozen(group) {
			return errors.New("it is not")
		}
		return nil
	})
}

func thaw(t *testing.T, group string) {
	t.Helper()
	if state := filepath.Join(group, "freezer.state"); isThere(state) {
		write(t, state, "THAWED")
		return
	}
	write(t, filepath.Join(group, "cgroup.freeze"), "0")
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func write(t *testing.T, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestJudge: only the time without obstacles to a container counts.
func TestJudge(t *testing.T) {
	const mark = "lab/one"
	m := newMonitor(nil)
	began := time.Now()
	m.judge(mark, began, []string{"x"}, nil)
	m.judge(mark, began.Add(time.Hour), nil, nil) // there is an obstacle
	m.healed = began.Add(time.Hour)
	m.judge(mark, began.Add(time.Hour+time.Second), nil, nil)
	m.judge(mark, began.Add(time.Hour+2*time.Second), []string{"y"}, nil)
	m.judge(mark, began.Add(time.Hour+2500*time.Millisecond), nil, nil)
	if longest, of := m.longest(); longest != time.Second || of != mark {
		t.Errorf("nowhere for %v at most (%s), want one second", longest, of)
	}
}
