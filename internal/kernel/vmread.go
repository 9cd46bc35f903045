package kernel

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MaxReadRanges is the most ranges that one ReadMemory takes (UIO_MAXIOV is 1024).
const MaxReadRanges = 512

// MemoryReader reads the memory of a process while it runs. It is for one goroutine.
type MemoryReader struct {
	space  *AddressSpace
	remote [MaxReadRanges]unix.RemoteIovec
	forced *os.File // /proc/PID/mem
}

// Reader returns a reader of the process's memory.
func (a *AddressSpace) Reader() *MemoryReader { return &MemoryReader{space: a} }

// Read fills into with the content of the ranges, which are together as long as it is, one after
// the other. It returns how many bytes it has read: fewer than all when it came to memory that is
// gone or that the process itself may not read (see ReadForced). Error: fs.ErrNotExist when the
// process is gone.
func (r *MemoryReader) Read(ranges []PageRange, into []byte) (int, error) {
	if len(ranges) == 0 {
		return 0, nil
	}
	if len(ranges) > MaxReadRanges {
		return 0, fmt.Errorf("memory of process %d: read %d ranges at once, want at most %d", r.space.pid,
			len(ranges), MaxReadRanges)
	}
	for i, one := range ranges {
		r.remote[i] = unix.RemoteIovec{Base: uintptr(one.Start), Len: int(one.End - one.Start)}
	}
	local := []unix.Iovec{{Base: &into[0]}}
	local[0].SetLen(len(into))
	n, err := unix.ProcessVMReadv(r.space.pid, local, r.remote[:len(ranges)], 0)
	// what was read may be of another process, which has its number
	if gone := r.space.stillThere(); gone != nil {
		clear(into)
		return 0, gone
	}
	if errors.Is(err, unix.EFAULT) {
		return 0, nil
	}
	if err != nil {
		return 0, r.space.failed("read it", err)
	}
	return n, nil
}

// ReadGently does the same and leaves pages shared that processes share copy-on-write: Read pins
// what it reads, for which the kernel gives the process a page of its own (mm/gup.c,
// gup_must_unshare; Linux 5.19). It is slower.
func (r *MemoryReader) ReadGently(ranges []PageRange, into []byte) (int, error) {
	n, err := r.readGently(ranges, into)
	if n > 0 || !errors.Is(err, io.EOF) {
		return n, noEnd(err)
	}
	// What was opened is gone: the process has ended, or called execve.
	_ = r.forced.Close() // it was only read
	r.forced = nil
	n, err = r.readGently(ranges, into)
	return n, noEnd(err)
}

// noEnd is for reads that end early: that is told by how much was read.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EIO) {
		return nil
	}
	return err
}

func (r *MemoryReader) readGently(ranges []PageRange, into []byte) (int, error) {
	if err := r.open(); err != nil {
		return 0, err
	}
	total := 0
	for _, one := range ranges {
		size := int(one.End - one.Start)
		n, err := r.forced.ReadAt(into[total:total+size], int64(one.Start))
		total += n
		if n < size {
			return total, r.space.failed(fmt.Sprintf("read it at %#x", one.Start), err)
		}
	}
	return total, nil
}

// OpenMemory opens the memory that the process has now as a file: a place in it is an address. It
// can be read by several goroutines at once, and never is the memory of another process. To read it
// leaves pages shared that processes share copy-on-write, as ReadGently does. At the end of the
// process, or at an execve, it is empty: io.EOF. EIO: nothing is there.
func (a *AddressSpace) OpenMemory() (*os.File, error) { return a.open("mem") }

// open opens the memory as a file.
func (r *MemoryReader) open() error {
	if r.forced != nil {
		return nil
	}
	f, err := r.space.open("mem")
	r.forced = f
	return err
}

// ReadForced reads memory at an address even if the process itself may not read it. It tells
// whether there was any.
func (r *MemoryReader) ReadForced(address uint64, into []byte) (bool, error) {
	if err := r.open(); err != nil {
		return false, err
	}
	n, err := r.forced.ReadAt(into, int64(address))
	if n == len(into) {
		return true, nil
	}
	// 0 bytes: the address space is gone (proc_pid_mem(5)); EIO: nothing is mapped there.
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EIO) {
		return false, nil
	}
	return false, r.space.failed(fmt.Sprintf("read it at %#x", address), err)
}

// Close ends the use of the reader.
func (r *MemoryReader) Close() error {
	if r.forced == nil {
		return nil
	}
	return r.forced.Close()
}
