package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/inject"
)

// TestAttachToFrozen: attaching fails, soon, and leaves the process unchanged.
func TestAttachToFrozen(t *testing.T) {
	p := start(t, "spin-write", 1, 2)
	for range 3 {
		p.freeze()
		_, _, err := inject.OpenUserfault(p.pid())
		if !errors.Is(err, inject.ErrUntraceable) {
			t.Errorf("attached to a frozen process: %v", err)
		}
		frozen, err := p.group.Frozen()
		must(t, err)
		if !frozen {
			t.Error("it is frozen no more")
		}
		p.thaw()
		p.progress()
		leavesNoTrace(t, p.pid())
	}
}

// TestAttachToStopped: attaching works, and the process stays stopped until it gets SIGCONT.
func TestAttachToStopped(t *testing.T) {
	p := start(t, "spin-write", 1, 2)
	for range 5 {
		must(t, unix.Kill(p.pid(), unix.SIGSTOP))
		waitState(t, p.pid(), 'T')
		s := NewSource(SourceConfig{Processes: p.group.Procs})
		target := newCopied(t)
		if stats := target.round(s, false); len(stats.Refused) > 0 {
			t.Errorf("not tracked: %+v", stats.Refused)
		}
		waitState(t, p.pid(), 'T')
		must(t, s.Close())
		must(t, unix.Kill(p.pid(), unix.SIGCONT))
		p.progress()
		leavesNoTrace(t, p.pid())
	}
}

func waitState(t *testing.T, pid int, state byte) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		p, err := kernel.ReadProcess(pid)
		must(t, err)
		if p.State == state {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is in state %c, want %c", pid, p.State, state)
		}
	}
}

// TestTracedByAnother: the source names the process, and sends the right pages nevertheless.
func TestTracedByAnother(t *testing.T) {
	p := start(t, "write-churn", 4, 2)
	seized, release, released := make(chan error), make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and lets go
		seized <- unix.PtraceSeize(p.pid())
		<-release
		released <- nil
	}()
	must(t, <-seized)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	target := newCopied(t)
	var stats RoundStats
	for range 3 {
		stats = target.round(s, false)
		p.progress()
	}
	refusedFor(t, stats, p.pid(), "traces it")
	p.freeze()
	target.round(s, true)
	target.round(s, true)
	maps, err := s.Map()
	must(t, err)
	target.verify(p, maps)
	p.thaw()
	must(t, s.Close())
	close(release)
	must(t, <-released)
}

// refusedFor checks that one process is tracked with another method than the rest, for this reason, if the
// kernel has a better method.
func refusedFor(t *testing.T, stats RoundStats, pid int, why string) {
	t.Helper()
	if stats.Tracking != WriteProtect {
		if len(stats.Refused) > 0 {
			t.Errorf("refused: %+v", stats.Refused)
		}
		return
	}
	instead := Hashing
	if kernel.ProbeSoftDirty() == nil {
		instead = SoftDirty
	}
	if len(stats.Refused) != 1 || stats.Refused[0].PID != pid ||
		!strings.Contains(stats.Refused[0].Reason, why) ||
		stats.Refused[0].Instead != instead {
		t.Errorf("refused: %+v, want %s instead", stats.Refused, instead)
	}
}

// Test32Bit compares the pages of a program that cannot be made to execute 64-bit system calls.
func Test32Bit(t *testing.T) {
	p := start(t, "32", 1, 1)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	target := newCopied(t)
	var stats RoundStats
	for range 3 {
		stats = target.round(s, false)
		p.progress()
	}
	refusedFor(t, stats, p.pid(), "32-bit")
	p.freeze()
	target.round(s, true)
	target.round(s, true)
	maps, err := s.Map()
	must(t, err)
	target.verify(p, maps)
	p.thaw()
	must(t, s.Close())
	p.progress()
}

const envAttach = "GODWIT_TEST_ATTACH"

// TestAttachingAgent is no test by itself: TestAgentDies starts and kills it.
func TestAttachingAgent(t *testing.T) {
	var pid int
	if _, err := fmt.Sscanf(os.Getenv(envAttach), "%d", &pid); err != nil {
		return
	}
	s := NewSource(SourceConfig{Processes: func() ([]int, error) { return []int{pid}, nil }})
	for {
		stats, err := s.Round(context.Background(), ignoreRuns())
		must(t, err)
		if len(stats.Refused) > 0 {
			t.Fatalf("not tracked: %+v", stats.Refused)
		}
		fmt.Println("round")
	}
}

// TestAgentDies kills the agent at any moment of its rounds: nothing is left in the process.
func TestAgentDies(t *testing.T) {
	p := start(t, "write-churn-grow", 8, 2)
	for i := range 10 {
		agent := exec.Command("/proc/self/exe", "-test.run=^TestAttachingAgent$", "-test.v")
		agent.Env = append(os.Environ(), fmt.Sprintf("%s=%d", envAttach, p.pid()))
		out, err := agent.StdoutPipe()
		must(t, err)
		must(t, agent.Start())
		seen := make([]byte, 4096)
		for n := 0; i%2 == 0 && !strings.Contains(string(seen[:n]), "round"); {
			m, err := out.Read(seen[n:])
			if n += m; err != nil {
				t.Fatalf("the agent says %s, %v", seen[:n], err)
			}
		}
		must(t, agent.Process.Kill())
		_ = agent.Wait()
		p.progress()
		leavesNoTrace(t, p.pid())
	}
}

// TestCancel ends a round in the middle.
func TestCancel(t *testing.T) {
	p := start(t, "write", 8, 2)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	ctx, cancel := context.WithCancel(context.Background())
	_, err := s.Round(ctx, sinkFunc(func(Run, []byte) error {
		cancel()
		return nil
	}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	must(t, s.Close())
	refused := errors.New("refused")
	s = NewSource(SourceConfig{Processes: p.group.Procs}) // the other one has lost its unsent pages
	_, err = s.Round(context.Background(), sinkFunc(func(Run, []byte) error { return refused }))
	if !errors.Is(err, refused) {
		t.Errorf("the sink fails: %v", err)
	}
	must(t, s.Close())
	p.progress()
	leavesNoTrace(t, p.pid())
}

// TestProcessesEnd lets the container end between rounds and within one.
func TestProcessesEnd(t *testing.T) {
	p := start(t, "write", 8, 2)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	sink := sinkFunc(func(Run, []byte) error {
		p.end()
		return nil
	})
	if _, err := s.Round(context.Background(), sink); err != nil {
		t.Errorf("it ends in a round: %v", err)
	}
	ended := &forgetting{}
	if stats, err := s.Round(context.Background(), ended); err != nil || stats.Tasks+int(stats.Pages) > 0 {
		t.Errorf("it has ended: %+v, %v", stats, err)
	}
	if len(ended.forgotten) != 1 {
		t.Errorf("the sink was told that %v have ended", ended.forgotten)
	}
	must(t, s.Close())
}

// forgetting is a sink that notes which tasks have ended.
type forgetting struct {
	sinkFunc
	forgotten []Task
}

func (f *forgetting) Forget(task Task) error {
	f.forgotten = append(f.forgotten, task)
	return nil
}

// TestLost: a lost page ends a move, with each way of tracking, because it would be zeros at the target.
func TestLost(t *testing.T) {
	must(t, kernel.ProbePoison())
	for _, tracking := range []Tracking{"", Hashing} {
		p := start(t, "lost-wait", 1, 1)
		s := NewSource(SourceConfig{Processes: p.group.Procs, Tracking: tracking})
		if _, err := s.Round(t.Context(), ignoreRuns()); !errors.Is(err, errUnreadable) {
			t.Errorf("%q: a round of a program with a lost page: %v", tracking, err)
		}
		must(t, s.Close())
		p.progress()
	}
}
