package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// Ended reports whether all threads of a process have ended: the first may be a zombie while others run.
func Ended(pid int) bool {
	p, err := ReadProcess(pid)
	if err != nil || p.State != 'Z' && p.State != 'X' {
		return err != nil
	}
	threads, _ := ThreadsOf(pid) // none: the process is gone
	return len(threads) <= 1
}

// Process is the kernel's information about a process.
type Process struct {
	PID         int
	NamespaceID int    // its PID in its innermost PID namespace
	Session     int    // in its innermost PID namespace; 0 if the leader is outside
	Parent      int    // parent's pid
	Name        string // comm
	State       byte   // R, S, D, T, t, Z, X…
	Exiting     bool   // its first thread has ended or is about to (PF_EXITING of include/linux/sched.h)
	StartTicks  uint64 // start time, clock ticks since boot: with the PID it identifies a process for ever
	Threads     int
	Tracer      int // pid of the process that traces it, 0 if none
}

// ticksPerSecond is USER_HZ on every architecture that this program runs on.
const ticksPerSecond = 100

// Ticks returns the time since boot in the unit of Process.StartTicks.
func Ticks() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("time since boot: %w", err)
	}
	return uint64(now.Nano()) / (uint64(time.Second) / ticksPerSecond), nil
}

// AgeOf returns how long a process has run, and 0 if it is gone.
func AgeOf(pid int) time.Duration {
	process, err := ReadProcess(pid)
	now, failed := Ticks()
	if err != nil || failed != nil || now < process.StartTicks {
		return 0
	}
	return time.Duration(now-process.StartTicks) * time.Second / ticksPerSecond
}

// RanAt reports whether the process had started before a time, and still runs.
func (p Process) RanAt(ticks uint64) bool {
	return p.StartTicks < ticks && p.State != 'Z' && p.State != 'X'
}

// ReadProcess reads a process's facts from /proc. Error: fs.ErrNotExist when it is gone.
func ReadProcess(pid int) (Process, error) {
	stat, err := ReadProc(pid, "stat")
	if err != nil {
		return Process{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	status, err := ReadProc(pid, "status")
	if err != nil {
		return Process{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	return parseProcess(pid, stat, status)
}

// ReadProc reads a file of a process or thread in /proc. Error: fs.ErrNotExist when it is gone.
func ReadProc(pid int, name string) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	return string(data), whenGone(err)
}

// whenGone returns fs.ErrNotExist in place of the kernel's error for a process that is gone.
func whenGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fs.ErrNotExist
	}
	return err
}

// parseProcess reads /proc/PID/stat and /proc/PID/status (proc_pid_stat(5)). The name may contain
// anything, so fields are counted from the last parenthesis.
func parseProcess(pid int, stat, status string) (Process, error) {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return Process{}, fmt.Errorf("read process %d: no name in stat", pid)
	}
	p := Process{PID: pid, NamespaceID: pid, Name: stat[open+1 : end]}
	fields := strings.Fields(stat[end+1:])
	const parent, flags, threads, start = 1, 6, 17, 19 // fields 4, 9, 20 and 22 of the line
	const exiting = 1 << 2
	if len(fields) <= start {
		return Process{}, fmt.Errorf("read process %d: stat has only %d fields", pid, len(fields)+2)
	}
	p.State = fields[0][0]
	var errs [4]error
	p.Parent, errs[0] = strconv.Atoi(fields[parent])
	p.Threads, errs[1] = strconv.Atoi(fields[threads])
	p.StartTicks, errs[2] = strconv.ParseUint(fields[start], 10, 64)
	bits, err := strconv.ParseUint(fields[flags], 10, 64)
	p.Exiting, errs[3] = bits&exiting != 0, err
	if err := errors.Join(errs[:]...); err != nil {
		return Process{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	p.Tracer = StatusNumber(status, "TracerPid")
	if ids := strings.Fields(statusValue(status, "NSpid")); len(ids) > 0 {
		p.NamespaceID, _ = strconv.Atoi(ids[len(ids)-1])
	}
	if ids := strings.Fields(statusValue(status, "NSsid")); len(ids) > 0 {
		p.Session, _ = strconv.Atoi(ids[len(ids)-1])
	}
	return p, nil
}

// Tracers returns the processes that trace threads of a process. It checks all threads, because the first
// may have ended.
func Tracers(pid int) (all []int) {
	threads, _ := ThreadsOf(pid) // none: the process is gone
	for _, tid := range threads {
		status, _ := ReadProc(tid, "status") // a thread that has ended has no tracer
		thread := StatusNumber(status, "TracerPid")
		if thread == 0 {
			continue
		}
		tracer, _ := ReadProc(thread, "status") // the kernel reports the tracing thread
		if process := StatusNumber(tracer, "Tgid"); process != 0 && !slices.Contains(all, process) {
			all = append(all, process)
		}
	}
	return all
}

// ThreadsOf lists the threads of a process, zombies included. Error: fs.ErrNotExist when it is gone.
func ThreadsOf(pid int) ([]int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, whenGone(err)
	}
	threads := make([]int, 0, len(entries))
	for _, entry := range entries {
		if tid, err := strconv.Atoi(entry.Name()); err == nil {
			threads = append(threads, tid)
		}
	}
	return threads, nil
}

// StatusNumber returns a number from /proc/PID/status (proc_pid_status(5)); 0 if there is none.
func StatusNumber(status, key string) int {
	number, _ := strconv.Atoi(statusValue(status, key))
	return number
}

// statusBits returns a set of bits from /proc/PID/status; 0 if there is none.
func statusBits(status, key string) uint64 {
	bits, _ := strconv.ParseUint(statusValue(status, key), 16, 64)
	return bits
}

// HasPending reports whether a signal is pending for a process or one of its threads. Error: fs.ErrNotExist
// when the process is gone.
func HasPending(pid int, signal unix.Signal) (bool, error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return false, whenGone(err)
	}
	bit := uint64(1) << (signal - 1)
	for _, thread := range threads {
		status, err := ReadProc(pid, "task/"+thread.Name()+"/status")
		if err == nil && (statusBits(status, "SigPnd")|statusBits(status, "ShdPnd"))&bit != 0 {
			return true, nil
		}
	}
	return false, nil
}

// ThreadStatus returns the value of a line of /proc/TID/status; "" if there is no such line.
func ThreadStatus(tid int, key string) (string, error) {
	status, err := ReadProc(tid, "status")
	return statusValue(status, key), err
}

func statusValue(status, key string) string {
	for line := range strings.Lines(status) {
		if name, value, _ := strings.Cut(line, ":"); name == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// MemoryUse is how much memory a process has.
type MemoryUse struct {
	Anonymous uint64 // bytes that are present and belong to no file
	Reserved  uint64 // bytes of address space, present or not
}

// ReadMemoryUse reads how much memory a process has. Error: fs.ErrNotExist when it is gone.
func ReadMemoryUse(pid int) (MemoryUse, error) {
	status, err := ReadProc(pid, "status")
	if err != nil {
		return MemoryUse{}, fmt.Errorf("read the size of process %d: %w", pid, err)
	}
	return parseMemoryUse(status), nil
}

// parseMemoryUse reads /proc/PID/status (proc_pid_status(5)). A zombie has no memory, and no such lines.
func parseMemoryUse(status string) MemoryUse {
	var use MemoryUse
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		kilobytes, err := strconv.ParseUint(number, 10, 54)
		switch {
		case err != nil:
		case key == "RssAnon":
			use.Anonymous = kilobytes << 10
		case key == "VmSize":
			use.Reserved = kilobytes << 10
		}
	}
	return use
}

// PrivateUse is the memory of a process that belongs to no file, swapped or not.
type PrivateUse struct {
	Whole uint64 // bytes
	Parts uint64 // bytes; memory shared copy-on-write by n processes counts as an n-th
}

// ReadPrivateUse adds up the private memory of a process. The kernel walks all of its page tables,
// 10 ms for a GiB. Error: fs.ErrNotExist when it is gone.
func ReadPrivateUse(pid int) (PrivateUse, error) {
	rollup, err := ReadProc(pid, "smaps_rollup")
	if err != nil {
		return PrivateUse{}, fmt.Errorf("add up the memory of process %d: %w", pid, err)
	}
	return parsePrivateUse(rollup), nil
}

// parsePrivateUse reads /proc/PID/smaps_rollup (Documentation/ABI/testing/procfs-smaps_rollup;
// Pss_Anon since Linux 5.8).
func parsePrivateUse(rollup string) PrivateUse {
	bytes := map[string]uint64{}
	for line := range strings.Lines(rollup) {
		key, value, _ := strings.Cut(line, ":")
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		if kilobytes, err := strconv.ParseUint(number, 10, 54); err == nil {
			bytes[key] = kilobytes << 10
		}
	}
	use := PrivateUse{Whole: bytes["Anonymous"] + bytes["Swap"], Parts: bytes["Pss_Anon"] + bytes["SwapPss"]}
	if _, told := bytes["Pss_Anon"]; !told {
		use.Parts = use.Whole
	}
	return use
}

// PidfdOpen returns a descriptor that refers to a process, and never to another one that gets its PID
// (Linux 5.3).
func PidfdOpen(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("pidfd:%d", pid)), nil
}

// PidfdGetfd duplicates descriptor fd of the process behind pidfd (Linux 5.6). The caller closes the
// duplicate; it shares its open file with the process, so flags set on it are visible there.
func PidfdGetfd(pidfd *os.File, fd int) (int, error) {
	got, err := unix.PidfdGetfd(int(pidfd.Fd()), fd, 0)
	if err != nil {
		return -1, fmt.Errorf("take descriptor %d of %s: %w", fd, pidfd.Name(), err)
	}
	return got, nil
}

// PidfdKill sends SIGKILL to the process behind pidfd. A process that is gone is no error.
func PidfdKill(pidfd *os.File) error {
	err := unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %s: %w", pidfd.Name(), err)
	}
	return nil
}

// PidfdAlive reports whether the process behind pidfd has not ended: a pidfd becomes readable when it does.
func PidfdAlive(pidfd *os.File) (bool, error) {
	poll := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("poll %s: %w", pidfd.Name(), err)
		}
		return n == 0, nil
	}
}

// PidfdWait returns when the process behind pidfd or ctx has ended; it checks ctx every second.
func PidfdWait(ctx context.Context, pidfd *os.File) error {
	const pause = 1000 // milliseconds
	poll := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		n, err := unix.Poll(poll, pause)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll %s: %w", pidfd.Name(), err)
		}
		if n > 0 {
			return nil
		}
	}
	return ctx.Err()
}

// Printable removes control sequences for terminals from names that a container chose, for example of
// processes and files.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// Killed reports whether a process was sent a SIGKILL of which it has not died yet: it is frozen in version
// 1 of cgroups, or a Seizure keeps it from ending.
func Killed(pid int) bool {
	status, err := ReadProc(pid, "status")
	if err != nil {
		return false
	}
	const kill = 1 << (unix.SIGKILL - 1)
	if pending := statusBits(status, "SigPnd") | statusBits(status, "ShdPnd"); pending&kill != 0 {
		return true
	}
	stat, err := ReadProc(pid, "stat")
	return err == nil && killedBy(stat)
}

// killedBy reads from /proc/PID/stat whether SIGKILL ends a process. Its exit code is there before it has
// ended (fs/proc/array.c, do_task_stat, Linux 5.17), and before that the code of the stop in which a
// Seizure keeps it.
func killedBy(stat string) bool {
	fields := strings.Fields(stat)
	if len(fields) == 0 {
		return false
	}
	code, err := strconv.Atoi(fields[len(fields)-1])
	return err == nil && (code == int(unix.SIGKILL) || code == int(unix.SIGTRAP)|unix.PTRACE_EVENT_EXIT<<8)
}
