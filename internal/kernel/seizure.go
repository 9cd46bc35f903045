package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SeizureCommand is the hidden command of this program that holds frozen processes: see SeizureMain.
const SeizureCommand = "memory-keeper"

// Seizure keeps the memory of frozen processes readable, even if they are killed, until it is released. It
// is a separate process, so it outlives the process that started it. When it ends in any way, it releases
// everything.
//
// It traces all their threads (PTRACE_SEIZE) and requests PTRACE_EVENT_EXIT: a killed thread stops there,
// before it gives up its memory (kernel/exit.c: do_exit calls ptrace_event before exit_mm). Another SIGKILL
// does not wake the thread, because its process is already ending (kernel/signal.c, prepare_signal, Linux
// 5.17; before that a second one does). Seizure also stops all threads (PTRACE_INTERRUPT), so that none of
// them runs if somebody else thaws them.
type Seizure struct {
	in    *os.File
	out   *os.File
	Ended chan struct{}
}

// seizurePatience bounds the answer of a process that has to make some system calls for each thread.
const seizurePatience = 5 * time.Second

// seizureReply is what the process answers.
type seizureReply struct {
	Threads int    `json:"threads"` // number of held threads
	Error   string `json:"error"`   // why not all of them are held
}

// StartSeizure starts the process, which holds nothing yet.
func StartSeizure() (*Seizure, error) {
	cmd := exec.Command("/proc/self/exe", SeizureCommand)
	cmd.Args[0] = "godwit"
	cmd.Dir = "/"
	s := &Seizure{Ended: make(chan struct{})}
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start a %s: %w", SeizureCommand, err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start a %s: %w", SeizureCommand, errors.Join(err, stdin.Close(), in.Close()))
	}
	s.in, s.out, cmd.Stdin, cmd.Stdout = in, out, stdin, stdout
	if err = errors.Join(StartLasting(cmd), stdin.Close(), stdout.Close()); err != nil {
		return nil, fmt.Errorf("start a %s: %w", SeizureCommand, errors.Join(err, s.Close()))
	}
	go func() {
		defer close(s.Ended)
		_ = cmd.Wait() // only its end matters
	}()
	return s, nil
}

// Hold makes the Seizure hold all threads of these processes, which must be frozen and untraced. It returns
// how many threads are held, and why not all of them.
func (s *Seizure) Hold(pids []int) (threads int, err error) {
	var reply seizureReply
	err = json.NewEncoder(s.in).Encode(pids)
	if err == nil {
		_ = s.out.SetReadDeadline(time.Now().Add(seizurePatience)) // a pipe has one
		err = json.NewDecoder(io.LimitReader(s.out, 1<<16)).Decode(&reply)
	}
	if err == nil && reply.Error != "" {
		err = errors.New(reply.Error)
	}
	if err != nil {
		err = fmt.Errorf("hold %d frozen processes: %w", len(pids), err)
	}
	return reply.Threads, err
}

// Close closes the connection to it. If it holds nothing, it ends.
func (s *Seizure) Close() error { return errors.Join(s.in.Close(), s.out.Close()) }

// SeizureMain is the main function of SeizureCommand. It reads a list of processes, holds them, answers,
// and stays until there is nothing left to hold, or it is killed: it never lets a thread continue.
func SeizureMain(in io.Reader, out io.Writer) int {
	runtime.LockOSThread() // a tracer is a thread
	// Best effort, because it needs CAP_SYS_RESOURCE: with this process, memory that others need would go.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
	warmSeizure()
	var pids []int
	if err := json.NewDecoder(io.LimitReader(in, 1<<20)).Decode(&pids); err != nil {
		return 0 // nobody needs it
	}
	var reply seizureReply
	var failed []error
	for _, pid := range pids {
		threads, err := seizeThreads(pid)
		if reply.Threads += threads; err != nil {
			failed = append(failed, fmt.Errorf("process %d: %w", pid, err))
		}
	}
	if err := errors.Join(failed...); err != nil {
		reply.Error = err.Error()
	}
	if err := json.NewEncoder(out).Encode(reply); err != nil {
		return 1 // the caller is gone, and takes nothing for held
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(-1, &status, unix.WALL, nil) // each stopped thread stays stopped
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0
		}
	}
}

// warmSeizure does once everything that must be quick when the processes are frozen: code that never ran
// has to be read from the program's file.
func warmSeizure() {
	var pids []int
	_ = json.Unmarshal([]byte("[0]"), &pids)
	_, _ = json.Marshal(seizureReply{})
	_, _ = seizeThreads(0) // no process has this PID
}

// seizeThreads traces and stops all threads of a process. An ended process has none.
func seizeThreads(pid int) (seized int, err error) {
	all, err := ThreadsOf(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	for _, tid := range all {
		t := Tracee{PID: pid, TID: tid}
		e := t.Ptrace(unix.PTRACE_SEIZE, 0, unix.PTRACE_O_TRACEEXIT)
		if e == nil {
			e = t.Ptrace(unix.PTRACE_INTERRUPT, 0, 0)
			seized++
		}
		if e == nil || errors.Is(e, fs.ErrNotExist) || hasEndedOrIsHeld(tid) {
			continue
		}
		err = errors.Join(err, fmt.Errorf("thread %d: %w%s", tid, e, tracedBy(tid)))
	}
	return seized, err
}

// hasEndedOrIsHeld reports whether a thread is gone, or a zombie, which nobody can trace, or held by
// another Seizure.
func hasEndedOrIsHeld(tid int) bool {
	p, err := ReadProcess(tid)
	return err != nil || p.State == 'Z' || p.State == 'X' || p.Tracer != 0 && isSeizure(p.Tracer)
}

// isSeizure reports whether a process is a Seizure.
func isSeizure(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	words := strings.Split(string(line), "\x00")
	return err == nil && len(words) > 1 && words[1] == SeizureCommand
}

// ReleaseSeized releases processes from any Seizure that holds them, including one that another agent has
// started, and returns when none is held any more. Processes that were killed meanwhile end. Others run on
// unless their group is frozen.
func ReleaseSeized(ctx context.Context, pids []int) error {
	var seen []int
	for _, pid := range pids {
		for _, tracer := range Tracers(pid) {
			if slices.Contains(pids, tracer) || slices.Contains(seen, tracer) {
				continue
			}
			seen = append(seen, tracer)
			if err := endSeizure(ctx, tracer); err != nil {
				return fmt.Errorf("release process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// Seized reports whether a Seizure holds a thread of a process.
func Seized(pid int) bool { return slices.ContainsFunc(Tracers(pid), isSeizure) }

// endSeizure kills a process if it is a Seizure, and waits for its end. Then the kernel has released the
// traced threads.
func endSeizure(ctx context.Context, pid int) error {
	pidfd, err := PidfdOpen(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if !isSeizure(pid) { // checked after the descriptor was opened, so its PID cannot be reused
		return nil // a CRIU, or a debugger
	}
	if err := PidfdKill(pidfd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, seizurePatience)
	defer cancel()
	return PidfdWait(ctx, pidfd)
}
