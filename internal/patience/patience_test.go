package patience

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
)

// envSpin makes the test's program use this much processor time and end.
const envSpin = "GODWIT_TEST_SPIN"

func TestMain(m *testing.M) {
	if wanted, err := time.ParseDuration(os.Getenv(envSpin)); err == nil {
		spin(wanted)
		return
	}
	os.Exit(m.Run())
}

func spin(wanted time.Duration) {
	_, _ = io.ReadAll(os.Stdin) // until it is told to begin
	burn(wanted)
}

// burn returns when this process has used that much more processor time.
func burn(wanted time.Duration) {
	used := func() time.Duration {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // which cannot fail with these arguments
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for began := used(); used() < began+wanted; {
	}
}

// spinner starts a program of this name that will use processor time, in a cgroup that allows a twentieth
// of a processor.
func spinner(t *testing.T, name string, wanted time.Duration) *exec.Cmd {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, self, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	join := slow(t)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), fmt.Sprint(envSpin, "=", wanted))
	begin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	join(cmd.Process.Pid)
	begin.Close()
	return cmd
}

// slow makes a cgroup that allows a twentieth of a processor.
func slow(t *testing.T) (join func(pid int)) {
	t.Helper()
	group, files := "/sys/fs/cgroup/cpu",
		map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "5000"}
	if _, err := os.Stat(group); err != nil {
		group, files = "/sys/fs/cgroup", map[string]string{"cpu.max": "5000 100000"}
	}
	group, err := os.MkdirTemp(group, "godwit-patience-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// the process is killed, and may not be gone
		await.True(t, "an empty group", func() bool { return unix.Rmdir(group) != unix.EBUSY })
	})
	write := func(name, value string) {
		if err := os.WriteFile(filepath.Join(group, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range files {
		write(name, value)
	}
	return func(pid int) { write("cgroup.procs", fmt.Sprint(pid)) }
}

// TestSlowIsNotGivenUp: the wait for an active program, however slow, is longer than the wait for an
// inactive one.
func TestSlowIsNotGivenUp(t *testing.T) {
	cmd := spinner(t, "slow-engine", 200*time.Millisecond) // 4 s at a twentieth of a processor
	ctx, cancel := Limit{Still: time.Second, Most: 10 * time.Minute}.For(t.Context(), "the engine",
		Programs("slow-eng"))
	defer cancel()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Errorf("a program that works is given up: %v", ctx.Err())
	}
}

// TestStoppedIsGivenUp: the wait for an inactive program ends, and the error says so.
func TestStoppedIsGivenUp(t *testing.T) {
	cmd := spinner(t, "still-engine", time.Hour)
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := Limit{Still: time.Second, Most: 10 * time.Minute}.For(t.Context(), "the engine",
		Programs("still-eng"))
	defer cancel()
	<-ctx.Done()
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "did not answer within") ||
		!strings.Contains(err.Error(), "shows no sign of work") || Explain(ctx, io.EOF) == io.EOF ||
		Explain(ctx, nil) != nil {
		t.Errorf("the wait has ended with %v", err)
	}
}

// TestCirclesAreGivenUp: the wait for a program that works for ever ends.
func TestCirclesAreGivenUp(t *testing.T) {
	spinner(t, "busy-engine", time.Hour)
	ctx, cancel := Limit{Still: time.Second, Most: 3 * time.Second}.For(t.Context(), "the engine",
		Programs("busy-eng"))
	defer cancel()
	<-ctx.Done()
	if err := ctx.Err(); err == nil ||
		!regexp.MustCompile(`^the engine did not answer within \d+s and is still busy$`).MatchString(
			err.Error()) {
		t.Errorf("the wait has ended with %v", err)
	}
}

// TestBytesMove: as long as bytes arrive, the wait goes on, and derived contexts end with the same error.
func TestBytesMove(t *testing.T) {
	var bytes, looked atomic.Int64
	ctx, cancel := Limit{Still: 100 * time.Millisecond, Most: time.Hour}.For(t.Context(), "node b",
		func() bool {
			looked.Add(1)
			return Count(func() int64 { return 0 })() || looked.Load() < 50
		})
	defer cancel()
	derived, end := context.WithCancel(ctx)
	defer end()
	<-derived.Done()
	if looked.Load() < 50 || Explain(derived, io.EOF) == io.EOF {
		t.Errorf("given up after %d looks: %v", looked.Load(), context.Cause(derived))
	}
	moved := Count(bytes.Load)
	if moved() {
		t.Error("nothing has come, and the other side is said to have moved")
	}
	if bytes.Add(1); !moved() || moved() {
		t.Error("a byte has come, and that is not told once")
	}
}

// TestNoPatience: a wait of no time at all is over at once, and has no error of its own.
func TestNoPatience(t *testing.T) {
	for _, limit := range []Limit{{}, {Still: -time.Second, Most: time.Hour}, {Still: 1, Most: 1}} {
		ctx, cancel := limit.For(t.Context(), "the engine", func() bool { return true })
		<-ctx.Done()
		if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%+v: %v", limit, err)
		}
		cancel()
	}
}

// TestCancelled: a wait that was cancelled is not blamed on the other side.
func TestCancelled(t *testing.T) {
	ctx, cancel := Question.For(t.Context(), "the engine", func() bool { return true })
	cancel()
	cancel()
	if !errors.Is(ctx.Err(), context.Canceled) || Explain(ctx, io.EOF) != io.EOF {
		t.Errorf("a wait that was ended says %v", ctx.Err())
	}
}

// TestOwnWorkIsNoSign: this process works while it waits, whatever its name.
func TestOwnWorkIsNoSign(t *testing.T) {
	const comm = "/proc/self/comm"
	was, err := os.ReadFile(comm)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprint("own-", os.Getpid())
	for _, set := range []string{name, strings.TrimSpace(string(was))} {
		if err := os.WriteFile(comm, []byte(set), 0o600); err != nil {
			t.Fatal(err)
		}
		if set != name {
			break
		}
		moved := Programs("own-")
		moved() // the first call finds the processes
		burn(100 * time.Millisecond)
		if moved() {
			t.Error("a program waits for itself")
		}
	}
}

// TestStat: names of processes may contain anything.
func TestStat(t *testing.T) {
	line, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if name, rest := splitStat(line); name == "" || len(rest[0]) != 1 {
		t.Errorf("this process is %q, %s", name, rest)
	}
	name, rest := splitStat([]byte("7 (a) b (c) S" + strings.Repeat(" 1", 40)))
	if name != "a) b (c" || string(rest[0]) != "S" {
		t.Errorf("%q %s", name, rest)
	}
	for _, bad := range []string{"", "7", "7 (", ") (", "7 (a) S 1"} {
		if name, rest := splitStat([]byte(bad)); name != "" || rest != nil {
			t.Errorf("%q is %q, %s", bad, name, rest)
		}
	}
}

// TestOnlyThatProgramIsASign: shims of containers have names that begin with the daemon's, and work while
// the daemon hangs.
func TestOnlyThatProgramIsASign(t *testing.T) {
	spinner(t, "some-daemon-x", time.Hour)
	ctx, cancel := Limit{Still: time.Second, Most: 10 * time.Minute}.For(t.Context(), "the engine",
		Program("some-daemon"))
	defer cancel()
	<-ctx.Done()
	if err := ctx.Err(); err == nil || !strings.Contains(err.Error(), "shows no sign of work") {
		t.Errorf("the wait has ended with %v", err)
	}
	signs := Program("some-daemon-x")
	for range 2 { // the first look is always a sign
		if !signs() {
			t.Error("the program works, and that is no sign")
		}
	}
}
