package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

// sleeper starts a process that does nothing until the returned function is called.
func sleeper(t *testing.T) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "1h")
	kerneltest.Must(t, cmd.Start())
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

// TestReadOfAnother ends a process, lets another get its PID, and checks that none of the other's memory is
// read.
func TestReadOfAnother(t *testing.T) {
	const lastPID = "/proc/sys/kernel/ns_last_pid"
	pid, end := sleeper(t)
	space, err := OpenAddressSpace(pid)
	kerneltest.Must(t, err)
	defer space.Close()
	reader := space.Reader()
	defer reader.Close()
	end()
	for deadline := time.Now().Add(10 * time.Second); ; {
		kerneltest.Must(t, os.WriteFile(lastPID, fmt.Appendf(nil, "%d", pid-1), 0))
		other, end := sleeper(t)
		if other == pid {
			readNothing(t, pid, reader)
			return
		}
		end()
		if time.Now().After(deadline) {
			t.Fatal("no other process gets the number")
		}
	}
}

func readNothing(t *testing.T, pid int, reader *MemoryReader) {
	t.Helper()
	other, err := OpenAddressSpace(pid)
	kerneltest.Must(t, err)
	defer other.Close()
	mappings, err := other.Mappings()
	kerneltest.Must(t, err)
	if len(mappings) == 0 {
		t.Fatal("the other process has no memory")
	}
	one := PageRange{Start: mappings[0].Start, End: mappings[0].Start + uint64(os.Getpagesize())}
	into := make([]byte, os.Getpagesize())
	if n, err := other.Reader().Read([]PageRange{one}, into); err != nil || n != len(into) {
		t.Fatalf("the other process: %d bytes, %v", n, err)
	}
	clear(into)
	if n, err := reader.Read([]PageRange{one}, into); n != 0 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%d bytes were read of another process, %v", n, err)
	}
	if !bytes.Equal(into, make([]byte, len(into))) {
		t.Error("memory of another process was read")
	}
}

// TestOpenDescriptor opens a memfd of a process, and refuses what may be in its place a moment later.
func TestOpenDescriptor(t *testing.T) {
	space, err := OpenAddressSpace(os.Getpid())
	kerneltest.Must(t, err)
	defer space.Close()
	fd, err := unix.MemfdCreate("it", unix.MFD_CLOEXEC)
	kerneltest.Must(t, err)
	memfd := os.NewFile(uintptr(fd), "memfd")
	defer memfd.Close()
	_, err = memfd.WriteString("content")
	kerneltest.Must(t, err)
	again, err := space.OpenDescriptor(fmt.Sprint(fd))
	kerneltest.Must(t, err)
	defer again.Close()
	content := make([]byte, 7)
	if _, err := again.Read(content); err != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}

	path := filepath.Join(t.TempDir(), "fifo")
	kerneltest.Must(t, unix.Mkfifo(path, 0o600))
	// without anybody who writes
	fifo, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	kerneltest.Must(t, err)
	defer unix.Close(fifo)
	opened := make(chan error, 1)
	go func() {
		_, err := space.OpenDescriptor(fmt.Sprint(fifo))
		opened <- err
	}()
	select {
	case err := <-opened:
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a FIFO: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("to open a FIFO waits")
	}
	if _, err := space.OpenDescriptor("1000000"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a descriptor that is closed: %v", err)
	}
}
