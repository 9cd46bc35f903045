package cgroup

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == kernel.SeizureCommand:
		os.Exit(kernel.SeizureMain(os.Stdin, os.Stdout))
	case os.Getenv(envThreads) != "":
		countInThreads()
	}
	os.Exit(m.Run())
}

const (
	envThreads = "GODWIT_TEST_THREADS"
	leaderEnds = "all but the first" // value of envThreads: the first thread ends
	threads    = 20
	pattern    = "memory that must stay readable"
)

// The main function runs in the first thread only if that is requested before the program starts.
var _ = func() bool {
	if os.Getenv(envThreads) == leaderEnds {
		runtime.LockOSThread()
	}
	return true
}()

// countInThreads is a process with many threads, which all count in one place in its memory. It prints the
// address. The memory is also that of descriptor 3, where the count remains when the process has ended.
func countInThreads() {
	page, err := unix.Mmap(3, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	copy(page[8:], pattern)
	counter := (*atomic.Uint64)(unsafe.Pointer(&page[0]))
	var running sync.WaitGroup
	for range threads {
		running.Add(1)
		go func() {
			runtime.LockOSThread()
			running.Done()
			for {
				counter.Add(1)
				time.Sleep(time.Millisecond)
			}
		}()
	}
	running.Wait()
	fmt.Printf("%d\n", uintptr(unsafe.Pointer(&page[0])))
	if os.Getenv(envThreads) == leaderEnds {
		// The process waits until it is in its group: a thread that has ended is not moved.
		_, _ = os.Stdin.Read(make([]byte, 1))
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0) // of this thread alone
	}
	select {}
}

// threaded is such a process, in a group of its own.
type threaded struct {
	group   *Cgroup
	pid     int
	address int64
	memory  *os.File
	shared  *os.File // the same memory, which outlives the process
}

func newThreaded(t *testing.T, mount string) *threaded {
	t.Helper()
	return newThreadedOf(t, mount, "all")
}

func newThreadedOf(t *testing.T, mount, which string) *threaded {
	t.Helper()
	dir := fmt.Sprintf("%s/godwit-test-seized-%d", mount, os.Getpid())
	kerneltest.Must(t, os.Mkdir(dir, 0o755))
	p := &threaded{}
	var err error
	p.group, err = At(dir)
	kerneltest.Must(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envThreads+"="+which)
	p.shared = sharedPage(t)
	cmd.ExtraFiles = []*os.File{p.shared}
	out, err := cmd.StdoutPipe()
	kerneltest.Must(t, err)
	in, err := cmd.StdinPipe()
	kerneltest.Must(t, err)
	kerneltest.Must(t, cmd.Start())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(p.group.Kill(ctx), p.group.Thaw()); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if err := p.group.Remove(); err != nil {
			t.Error(err)
		}
	})
	p.pid = cmd.Process.Pid
	kerneltest.Must(t, os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, p.pid), 0))
	kerneltest.Must(t, in.Close())
	_, err = fmt.Fscan(out, &p.address)
	kerneltest.Must(t, err)
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
	kerneltest.Must(t, err)
	// The first thread may have ended, and then has no memory.
	p.memory, err = os.Open(fmt.Sprintf("/proc/%d/task/%s/mem", p.pid, names[len(names)-1].Name()))
	kerneltest.Must(t, err)
	t.Cleanup(func() { _ = p.memory.Close() })
	return p
}

// sharedPage is a page of memory that processes can share.
func sharedPage(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("page", unix.MFD_CLOEXEC)
	kerneltest.Must(t, err)
	page := os.NewFile(uintptr(fd), "page")
	t.Cleanup(func() { _ = page.Close() })
	kerneltest.Must(t, page.Truncate(int64(os.Getpagesize())))
	return page
}

// counted returns the count, even if the process has ended.
func (p *threaded) counted(t *testing.T) uint64 {
	t.Helper()
	var count [8]byte
	_, err := p.shared.ReadAt(count[:], 0)
	kerneltest.Must(t, err)
	return binary.NativeEndian.Uint64(count[:])
}

// read returns the process's memory: the first eight bytes are the count.
func (p *threaded) read() ([]byte, error) {
	data := make([]byte, 8+len(pattern))
	_, err := p.memory.ReadAt(data, p.address)
	if err == nil && string(data[8:]) != pattern {
		err = fmt.Errorf("it has %q", data[8:])
	}
	return data, err
}

// held freezes the process and makes a Seizure hold it.
func (p *threaded) held(t *testing.T) {
	t.Helper()
	_, err := p.group.Freeze(t.Context())
	kerneltest.Must(t, err)
	s, err := kernel.StartSeizure()
	kerneltest.Must(t, err)
	n, err := s.Hold([]int{p.pid})
	if kerneltest.Must(t, err); n <= threads {
		t.Errorf("%d threads are held, of more than %d", n, threads)
	}
	kerneltest.Must(t, s.Close()) // the process that started it may be gone
}

// awaitState waits until the process's first thread is in one of these states.
func (p *threaded) awaitState(t *testing.T, states string) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); ; {
		process, err := kernel.ReadProcess(p.pid)
		if errors.Is(err, fs.ErrNotExist) || err == nil && strings.IndexByte(states, process.State) >= 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("process %d is %+v, %v; want one of %s", p.pid, process, err, states)
		}
		runtime.Gosched()
	}
}

// awaitEnd waits until the process has no memory, which lasts until the end of its last thread.
func (p *threaded) awaitEnd(t *testing.T) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); ; {
		if _, err := p.read(); err != nil {
			return
		}
		if time.Now().After(until) {
			t.Fatal("it does not end")
		}
	}
}

// TestSeizedKilled checks that the memory of held, frozen processes can be read after they were killed,
// even repeatedly and thread by thread, and that they end when they are released.
func TestSeizedKilled(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			p := newThreaded(t, mount)
			p.held(t)
			before, err := p.read()
			kerneltest.Must(t, err)
			for range 50 {
				kerneltest.Must(t, unix.Kill(p.pid, unix.SIGKILL))
				names, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
				kerneltest.Must(t, err)
				for _, name := range names {
					var tid int
					_, _ = fmt.Sscan(name.Name(), &tid)
					_ = unix.Tgkill(p.pid, tid, unix.SIGKILL)
				}
				if after, err := p.read(); err != nil || !bytes.Equal(before, after) {
					t.Fatalf("it was killed, and has %q, %v; had %q", after, err, before)
				}
			}
			kerneltest.Must(t, p.group.Thaw()) // in version 1, SIGKILL takes effect only now
			p.awaitState(t, "t")
			if after, err := p.read(); err != nil || !bytes.Equal(before, after) {
				t.Fatalf("it was killed and thawed, and has %q, %v; had %q", after, err, before)
			}
			kerneltest.Must(t, kernel.ReleaseSeized(t.Context(), []int{p.pid}))
			p.awaitEnd(t)
		})
	}
}

// TestSeizedWithoutLeader holds a process whose first thread has ended by its other threads, releases it,
// and kills it.
func TestSeizedWithoutLeader(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			p := newThreadedOf(t, mount, leaderEnds)
			p.awaitState(t, "Z")
			p.held(t)
			before, err := p.read()
			kerneltest.Must(t, err)
			kerneltest.Must(t, p.group.Thaw())
			if !kernel.Seized(p.pid) {
				t.Error("it is not held")
			}
			kerneltest.Must(t, kernel.ReleaseSeized(t.Context(), []int{p.pid}))
			if kernel.Seized(p.pid) {
				t.Error("it is held after it was released")
			}
			for until := time.Now().Add(20 * time.Second); ; {
				after, err := p.read()
				kerneltest.Must(t, err)
				if !bytes.Equal(before, after) {
					break
				}
				if time.Now().After(until) {
					t.Fatal("it does not run")
				}
			}
			kerneltest.Must(t, p.group.Kill(t.Context()))
			if _, err := p.read(); err == nil {
				t.Error("it has memory after its group was killed")
			}
		})
	}
}

// TestKillHeld kills a group whose processes are held, and which somebody has thawed, and checks that none
// of its threads continues.
func TestKillHeld(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		for _, which := range []string{"all", leaderEnds} {
			t.Run(version+", threads: "+which, func(t *testing.T) {
				p := newThreadedOf(t, mount, which)
				if which == leaderEnds {
					p.awaitState(t, "Z")
				}
				p.held(t)
				kerneltest.Must(t, p.group.Thaw())
				before := p.counted(t)
				kerneltest.Must(t, p.group.Kill(t.Context()))
				if after := p.counted(t); after != before {
					t.Errorf("it counted from %d to %d when it was killed", before, after)
				}
				if _, err := p.read(); err == nil {
					t.Error("it has memory after its group was killed")
				}
			})
		}
	}
}

// TestKeepFrozen checks that the order to freeze stays visible while tracers stop the processes, and that a
// thawed group is frozen again. If that fails, the group is not thawed.
func TestKeepFrozen(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			p := newThreaded(t, mount)
			told := func(want bool) {
				t.Helper()
				if is, err := p.group.ToldToFreeze(); err != nil || is != want {
					t.Errorf("told to freeze: %v, %v; want %v", is, err, want)
				}
			}
			told(false)
			p.held(t)
			told(true)
			kerneltest.Must(t, p.group.Thaw())
			told(false)
			kerneltest.Must(t, unix.Kill(p.pid, unix.SIGKILL))
			p.awaitState(t, "t")
			kerneltest.Must(t, p.group.KeepFrozen(t.Context()))
			told(true)
			kerneltest.Must(t, p.group.Thaw())
			over, cancel := context.WithCancel(t.Context())
			cancel()
			if err := p.group.KeepFrozen(over); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			told(true)
		})
	}
}

// TestKeepFrozenPaused checks that a group that another program has paused with the freezer of version 1 is
// also kept frozen: it does not run when that program resumes it.
func TestKeepFrozenPaused(t *testing.T) {
	mounts := kerneltest.Freezers(t)
	p := newThreaded(t, mounts["version 2"])
	other := freezer{dir: fmt.Sprintf("%s/godwit-test-paused-%d", mounts["version 1"], os.Getpid())}
	kerneltest.Must(t, os.Mkdir(other.dir, 0o755))
	t.Cleanup(func() {
		_ = other.order(false)
		_ = os.WriteFile(mounts["version 1"]+"/cgroup.procs", fmt.Append(nil, p.pid), 0) // it may have ended
		if err := os.Remove(other.dir); err != nil {
			t.Error(err)
		}
	})
	kerneltest.Must(t, os.WriteFile(other.dir+"/cgroup.procs", fmt.Append(nil, p.pid), 0))
	_, err := other.stop(t.Context(), freezer{})
	kerneltest.Must(t, err)
	p.group.freezeOfOthers = other
	kerneltest.Must(t, p.group.KeepFrozen(t.Context()))
	before := p.counted(t)
	kerneltest.Must(t, other.order(false))
	kerneltest.Must(t, p.group.KeepFrozen(t.Context()))
	if after := p.counted(t); after != before {
		t.Errorf("it counted from %d to %d", before, after)
	}
}

// TestKilled checks that a process that was sent a SIGKILL is recognised before it ends, and that others
// are not.
func TestKilled(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			p := newThreaded(t, mount)
			if kernel.Killed(p.pid) {
				t.Error("it runs, and counts as killed")
			}
			p.held(t)
			if kernel.Killed(p.pid) {
				t.Error("it is held, and counts as killed")
			}
			kerneltest.Must(t, unix.Kill(p.pid, unix.SIGKILL))
			if !kernel.Killed(p.pid) {
				t.Error("it is frozen, and does not count as killed")
			}
			kerneltest.Must(t, p.group.Thaw())
			p.awaitState(t, "t")
			if !kernel.Killed(p.pid) {
				t.Error("it was thawed, and does not count as killed")
			}
		})
	}
}

// TestSeizedThawed checks that held processes do not run if somebody else thaws them, and continue where
// they were when they are released.
func TestSeizedThawed(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			p := newThreaded(t, mount)
			p.held(t)
			before, err := p.read()
			kerneltest.Must(t, err)
			kerneltest.Must(t, p.group.Thaw())
			p.awaitState(t, "t")
			_, err = p.group.Freeze(t.Context())
			kerneltest.Must(t, err)
			if after, err := p.read(); err != nil || !bytes.Equal(before, after) {
				t.Errorf("it ran: %q, %v; had %q", after, err, before)
			}
			kerneltest.Must(t, kernel.ReleaseSeized(t.Context(), []int{p.pid}))
			kerneltest.Must(t, kernel.ReleaseSeized(t.Context(), []int{p.pid}))
			kerneltest.Must(t, p.group.Thaw())
			for until := time.Now().Add(20 * time.Second); ; {
				after, err := p.read()
				kerneltest.Must(t, err)
				if !bytes.Equal(before, after) {
					break
				}
				if time.Now().After(until) {
					t.Fatal("it does not run")
				}
			}
		})
	}
}

// TestSeizureUnused checks that a Seizure that holds nothing ends with the process that started it, and
// that a Seizure whose processes are gone ends by itself.
func TestSeizureUnused(t *testing.T) {
	unused, err := kernel.StartSeizure()
	kerneltest.Must(t, err)
	kerneltest.Must(t, unused.Close())
	gone := exec.Command("true")
	kerneltest.Must(t, gone.Run())
	idle, err := kernel.StartSeizure()
	kerneltest.Must(t, err)
	if n, err := idle.Hold([]int{gone.Process.Pid}); n != 0 || err != nil {
		t.Errorf("%d threads of a process that is gone are held, %v", n, err)
	}
	for _, one := range []*kernel.Seizure{unused, idle} {
		select {
		case <-one.Ended:
		case <-time.After(20 * time.Second):
			t.Error("it does not end")
		}
	}
	kerneltest.Must(t, idle.Close())
}
