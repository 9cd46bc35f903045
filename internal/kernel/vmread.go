package kernel

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MaxReadRanges is the maximum number of ranges of a ReadMemory (UIO_MAXIOV is 1024).
const MaxReadRanges = 512

// MemoryReader reads the memory of a process while it runs. It is for one goroutine.
type MemoryReader struct {
	space  *AddressSpace
	remote [MaxReadRanges]unix.RemoteIovec
	forced *os.File // /proc/PID/mem
}

// Reader returns a reader of the process's memory.
func (a *AddressSpace) Reader() *MemoryReader { return &MemoryReader{space: a} }

// Read fills into with the contents of the ranges, one after the other; the ranges together have the length
// of into. It returns how many bytes it has read: fewer if it came to memory that is gone or that the
// process itself may not read (see ReadForced). Error: fs.ErrNotExist when the process is gone.
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
	// the data may be of another process with the same PID
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

// ReadGently does the same, but keeps copy-on-write pages shared. Read pins the pages, for which the kernel
// gives the process pages of its own (mm/gup.c, gup_must_unshare; Linux 5.19). ReadGently is slower.
func (r *MemoryReader) ReadGently(ranges []PageRange, into []byte) (int, error) {
	n, err := r.readGently(ranges, into)
	if n > 0 || !errors.Is(err, io.EOF) {
		return n, noEnd(err)
	}
	// The opened memory is gone: the process has ended, or called execve.
	_ = r.forced.Close() // it was only opened for reading
	r.forced = nil
	n, err = r.readGently(ranges, into)
	return n, noEnd(err)
}

// noEnd ignores the end of a read that ends early, which the number of bytes shows.
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

// OpenMemory opens the process's present memory as a file, in which offsets are addresses. Several
// goroutines can read the file at once, and it never becomes the memory of another process. Reading keeps
// copy-on-write pages shared, as ReadGently does. After the process has ended or called execve, the file is
// empty: io.EOF. EIO: nothing is mapped there.
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

// ReadForced reads memory at an address even if the process itself may not read it. It reports whether
// there was any.
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

// Close closes the reader.
func (r *MemoryReader) Close() error {
	if r.forced == nil {
		return nil
	}
	return r.forced.Close()
}
