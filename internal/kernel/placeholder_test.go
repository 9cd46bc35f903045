package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

// cloner is a process that makes the first process of a PID namespace when it is told to.
type cloner struct {
	pid    int
	tell   *os.File
	answer *os.File
	orders clonerOrders
}

// clonerOrders are made before the fork (see guardOrders).
type clonerOrders struct {
	in, out uintptr
	args    cloneArgs
	first   [1]int32
	byte    [1]byte
	result  [2]uintptr // number, error
}

func startCloner(t *testing.T, exitSignal uint64) *cloner {
	t.Helper()
	in, tell, err := os.Pipe()
	kerneltest.Must(t, err)
	answer, out, err := os.Pipe()
	kerneltest.Must(t, err)
	c := &cloner{tell: tell, answer: answer,
		orders: clonerOrders{in: in.Fd(), out: out.Fd(), first: [1]int32{1}}}
	c.orders.args = cloneArgs{
		flags: unix.CLONE_NEWPID, exitSignal: exitSignal,
		setTID: uint64(uintptr(unsafe.Pointer(&c.orders.first))), setTIDSize: 1,
	}
	pid, err := forkQuietly(func() (uintptr, unix.Errno) { return forkCloner(&c.orders) })
	kerneltest.Must(t, err)
	c.pid = int(pid)
	t.Cleanup(func() {
		_ = unix.Kill(c.pid, unix.SIGKILL)
		collected(t, c.pid)
		for _, file := range []*os.File{in, tell, answer, out} {
			_ = file.Close()
		}
	})
	return c
}

//go:nosplit
//go:norace
func forkCloner(o *clonerOrders) (uintptr, unix.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	_, _, _ = unix.RawSyscall(unix.SYS_READ, o.in, uintptr(unsafe.Pointer(&o.byte)), 1)
	first, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&o.args)),
		unsafe.Sizeof(o.args), 0)
	if errno == 0 && first == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	_, _, _ = unix.RawSyscall6(unix.SYS_WAIT4, first, 0, 0, 0, 0, 0)
	o.result = [2]uintptr{first, uintptr(errno)}
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, o.out, uintptr(unsafe.Pointer(&o.result)),
		unsafe.Sizeof(o.result))
	for {
		_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// clone makes the process through the cloner, and returns its PID.
func (c *cloner) clone(t *testing.T) (int, unix.Errno) {
	t.Helper()
	_, err := c.tell.Write([]byte{1})
	kerneltest.Must(t, err)
	var result [16]byte
	_, err = c.answer.Read(result[:])
	kerneltest.Must(t, err)
	return int(binary.NativeEndian.Uint64(result[:])), unix.Errno(binary.NativeEndian.Uint64(result[8:]))
}

func startPlaceholder(t *testing.T) *PIDPlaceholder {
	t.Helper()
	own, err := os.Open("/proc/self/ns/net")
	kerneltest.Must(t, err)
	defer own.Close()
	f, err := StartPIDPlaceholder(own)
	kerneltest.Must(t, err)
	return f
}

// collected waits for a child to end, and collects it.
func collected(t *testing.T, pid int) unix.WaitStatus {
	t.Helper()
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Errorf("wait for process %d: %v", pid, err)
		}
		return status
	}
}

// TestPIDPlaceholder checks that the first process of a PID namespace gets its placeholder's PID, and that
// the placeholder's parent learns of its end.
func TestPIDPlaceholder(t *testing.T) {
	f, c := startPlaceholder(t), startCloner(t, uint64(unix.SIGCHLD))
	process, err := ReadProcess(f.PID())
	if err != nil || process.Parent != os.Getpid() {
		t.Fatalf("it is %+v: %v", process, err)
	}
	if threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", f.PID())); err != nil || len(threads) != 1 {
		t.Errorf("its threads are %v: %v", threads, err)
	}
	done, err := f.HandOver(c.pid)
	kerneltest.Must(t, err)
	first, errno := c.clone(t)
	if err := <-done; err != nil || errno != 0 || first != f.PID() {
		t.Fatalf("the process is %d, want %d: %v, %v", first, f.PID(), errno, err)
	}
	if isChild(f.PID()) {
		t.Error("its number is that of a child still")
	}
	kerneltest.Must(t, f.End())
	if status := collected(t, f.PID()); status.ExitStatus() != 1 {
		t.Errorf("it has ended with %v", status)
	}
}

// TestPIDPlaceholderStays checks that End leaves an ended child with the PID if no process got it.
func TestPIDPlaceholderStays(t *testing.T) {
	f := startPlaceholder(t)
	kerneltest.Must(t, f.End())
	if status := collected(t, f.PID()); status.Signal() != unix.SIGKILL {
		t.Errorf("it has ended with %v", status)
	}

	f, c := startPlaceholder(t), startCloner(t, 1<<40) // no signal
	done, err := f.HandOver(c.pid)
	kerneltest.Must(t, err)
	_, errno := c.clone(t)
	if err := <-done; errno != unix.EINVAL || err == nil ||
		!strings.Contains(err.Error(), unix.EINVAL.Error()) {
		t.Errorf("%v, told as %v", errno, err)
	}
	kerneltest.Must(t, f.End())
	collected(t, f.PID())

	f, c = startPlaceholder(t), startCloner(t, uint64(unix.SIGCHLD))
	done, err = f.HandOver(c.pid)
	kerneltest.Must(t, err)
	kerneltest.Must(t, unix.Kill(c.pid, unix.SIGKILL))
	if err := <-done; err == nil {
		t.Error("the process that was to get the PID is killed, and nobody says so")
	}
	kerneltest.Must(t, f.End())
	collected(t, f.PID())
}

// TestPIDPlaceholderTaken covers another process that took the PID meanwhile, and soon ends.
func TestPIDPlaceholderTaken(t *testing.T) {
	holder := exec.CommandContext(t.Context(), "sh", "-c", "sleep 1000 & echo $!; wait")
	out, err := holder.StdoutPipe()
	kerneltest.Must(t, err)
	kerneltest.Must(t, holder.Start())
	var taken int
	_, err = fmt.Fscan(out, &taken)
	kerneltest.Must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- (&PIDPlaceholder{pid: taken, handed: true}).End() }()
	kerneltest.Must(t, unix.Kill(taken, unix.SIGKILL))
	kerneltest.Must(t, holder.Wait())
	kerneltest.Must(t, <-ended)
	if status := collected(t, taken); !status.Exited() {
		t.Errorf("%d: %v", taken, status)
	}
	taken = os.Getppid() // exists for longer
	if err := (&PIDPlaceholder{pid: taken, handed: true}).End(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a number that stays taken: %v", err)
	}
}

// TestPIDPlaceholderWaitsForNobody checks that a placeholder is not stopped until somebody resumes it,
// because that process may be killed before.
func TestPIDPlaceholderWaitsForNobody(t *testing.T) {
	f := startPlaceholder(t)
	var status unix.WaitStatus
	if pid, err := unix.Wait4(f.PID(), &status, unix.WNOHANG|unix.WUNTRACED|unix.WCONTINUED, nil); pid != 0 ||
		err != nil {
		t.Errorf("it was stopped: %v, %v", status, err)
	}
	// its pipe for reports is closed, or about to be
	if open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", f.PID())); err != nil || len(open) > 2 {
		t.Errorf("it has %d files open: %v", len(open), err)
	}
	kerneltest.Must(t, f.End())
	collected(t, f.PID())
	other, err := os.Open(os.DevNull)
	kerneltest.Must(t, err)
	defer other.Close()
	if _, err := StartPIDPlaceholder(other); !errors.Is(err, unix.EINVAL) {
		t.Errorf("in what is no network namespace: %v", err)
	}
}

// TestChildRuns checks that a child that this process traces and has stopped does not count as ended.
func TestChildRuns(t *testing.T) {
	f := startPlaceholder(t)
	AsTracer(func() bool {
		traced := &Tracee{PID: f.PID(), TID: f.PID()}
		kerneltest.Must(t, traced.stop())
		kerneltest.Must(t, traced.Ptrace(unix.PTRACE_SYSCALL, 0, 0)) // its own begins again
		var stop unix.Siginfo
		kerneltest.Must(t, unix.Waitid(unix.P_PID, f.PID(), &stop, unix.WSTOPPED|unix.WALL|unix.WNOWAIT, nil))
		if !ChildRuns(f.PID()) {
			t.Error("it is stopped, and said to have ended")
		}
		_, err := traced.wait()
		kerneltest.Must(t, err)
		kerneltest.Must(t, traced.Release())
		return !traced.Seized
	})
	if !ChildRuns(f.PID()) {
		t.Error("it is let on, and said to have ended")
	}
	kerneltest.Must(t, f.End())
	var info unix.Siginfo
	kerneltest.Must(t, unix.Waitid(unix.P_PID, f.PID(), &info, unix.WEXITED|unix.WNOWAIT, nil))
	if ChildRuns(f.PID()) {
		t.Error("it was killed, and said to run")
	}
	collected(t, f.PID())
	if ChildRuns(f.PID()) {
		t.Error("there is no such child, and it is said to run")
	}
}
