package rounds

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

// subject is a process of this machine whose memory is examined.
type subject struct {
	cmd   *exec.Cmd
	space *kernel.AddressSpace
	// tracked is left by one measurement for the next.
	tracked *tracked
	// Its output while it runs, if any.
	mu     sync.Mutex
	told   []pages.Pounded
	closed chan struct{}
}

// startSubject runs the workload and waits until its memory is filled.
func startSubject(ctx context.Context, program string, config pages.Config) (*subject, error) {
	s := &subject{cmd: exec.CommandContext(ctx, program, config.Args()...), closed: make(chan struct{})}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the workload: %w", err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != pages.Ready {
		return nil, errors.Join(fmt.Errorf("the workload says %q instead of %s", lines.Text(), pages.Ready),
			s.stop())
	}
	go s.listen(lines)
	if s.space, err = kernel.OpenAddressSpace(s.cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *subject) pid() int { return s.cmd.Process.Pid }

func (s *subject) listen(lines *bufio.Scanner) {
	defer close(s.closed)
	for lines.Scan() {
		var one pages.Pounded
		if json.Unmarshal(lines.Bytes(), &one) == nil {
			s.mu.Lock()
			s.told = append(s.told, one)
			s.mu.Unlock()
		}
	}
}

// speed is a subject's writes per second of processor time that it had or could have had, and the share of
// time in which other processes had its processor.
type speed struct{ perSecond, waited float64 }

// speed returns the speed between two instants, from the subject's output.
func (s *subject) speed(from, to time.Time) (speed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first, last time.Time
	var waited time.Duration
	writes := uint64(0)
	for _, one := range s.told {
		switch {
		case one.At.Before(from) || one.At.After(to):
		case first.IsZero():
			first = one.At
		default:
			last, writes, waited = one.At, writes+one.Writes, waited+one.Waited
		}
	}
	if writes == 0 {
		return speed{}, fmt.Errorf("the workload has told nothing in %v", to.Sub(from))
	}
	all := last.Sub(first).Seconds()
	return speed{float64(writes) / (all - waited.Seconds()), waited.Seconds() / all}, nil
}

// awaitWrites waits until the subject has written this often.
func (s *subject) awaitWrites(ctx context.Context, writes uint64) error {
	for began := time.Now(); ; {
		if err := testbed.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		v, err := s.speed(began, time.Now())
		if err == nil && v.perSecond*(1-v.waited)*time.Since(began).Seconds() > float64(writes) {
			return nil
		}
		if time.Since(began) > time.Minute {
			return errors.Join(fmt.Errorf("the workload has not written %d times in a minute", writes), err)
		}
	}
}

// largest returns the mapping with the workload's memory: all others are small.
func (s *subject) largest() (kernel.Mapping, error) {
	all, err := s.space.Mappings()
	var found kernel.Mapping
	for _, m := range all {
		if m.Readable && m.End-m.Start > found.End-found.Start {
			found = m
		}
	}
	return found, err
}

func (s *subject) stop() error {
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	if s.space != nil {
		<-s.closed
		err = errors.Join(err, s.space.Close())
	}
	if s.tracked != nil {
		err = errors.Join(err, s.tracked.close())
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// eachThread calls do for all threads of a process.
func eachThread(pid int, do func(tid int) error) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = do(tid)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("thread %s of process %d: %w", thread.Name(), pid, err)
		}
	}
	return nil
}

// pin pins a process to some processors.
func pin(pid int, processors ...int) error {
	var set unix.CPUSet
	for _, p := range processors {
		set.Set(p)
	}
	return eachThread(pid, func(tid int) error { return unix.SchedSetaffinity(tid, &set) })
}

// canBeApart checks that there are enough processors.
func canBeApart(context.Context) error {
	if runtime.NumCPU() < 2 {
		return errors.New("it has one processor: what works beside the workload takes its time")
	}
	return nil
}

// apart gives a process the last processor, and this one the others. The returned function gives this
// process all processors again.
func apart(pid int) (func() error, error) {
	n := runtime.NumCPU()
	if err := pin(pid, n-1); err != nil {
		return nil, err
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return func() error { return pin(os.Getpid(), all...) }, pin(os.Getpid(), all[:n-1]...)
}
