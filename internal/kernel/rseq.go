package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	ptraceGetRseq  = 0x420f // PTRACE_GET_RSEQ_CONFIGURATION (Linux 5.13)
	rseqCSOffset   = 8      // of rseq_cs in struct rseq of include/uapi/linux/rseq.h
	rseqCSSize     = 32     // struct rseq_cs
	rseqStart      = 8
	rseqPostCommit = 16
	rseqAbort      = 24
)

// abortRseq does what the kernel does to a thread that is stopped in the middle of a restartable sequence
// (rseq(2)): the thread continues at the sequence's abort handler. The kernel itself would not do so,
// because it sees other registers when the thread runs again.
func (t *Tracee) abortRseq() error {
	var config struct {
		pointer         uint64
		size, signature uint32
		flags, pad      uint32
	}
	err := t.Ptrace(ptraceGetRseq, unsafe.Sizeof(config), uintptr(unsafe.Pointer(&config)))
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.EINVAL) || err == nil && config.pointer == 0 {
		return nil // an older kernel or one without rseq, or a thread that does not use it
	}
	if err != nil {
		return err
	}
	var pointer [8]byte
	if err := t.read(config.pointer+rseqCSOffset, pointer[:]); err != nil {
		return err
	}
	at := binary.NativeEndian.Uint64(pointer[:])
	if at == 0 {
		return nil
	}
	var section [rseqCSSize]byte
	if err := t.read(at, section[:]); err != nil {
		return err
	}
	ip := t.regs.instruction()
	if *ip-binary.NativeEndian.Uint64(section[rseqStart:]) < binary.NativeEndian.Uint64(
		section[rseqPostCommit:]) {
		*ip = binary.NativeEndian.Uint64(section[rseqAbort:])
	}
	return nil
}

// read reads memory of the process.
func (t *Tracee) read(at uint64, into []byte) error {
	local := []unix.Iovec{{Base: &into[0]}}
	local[0].SetLen(len(into))
	n, err := unix.ProcessVMReadv(t.PID, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(into)}}, 0)
	if err == nil && n != len(into) {
		err = unix.EFAULT
	}
	return err
}

// write writes to the memory of the process.
func (t *Tracee) write(at uint64, data []byte) error {
	local := []unix.Iovec{{Base: &data[0]}}
	local[0].SetLen(len(data))
	n, err := unix.ProcessVMWritev(t.PID, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(data)}}, 0)
	if err == nil && n != len(data) {
		err = fmt.Errorf("only %d of %d bytes", n, len(data))
	}
	if err != nil {
		return fmt.Errorf("write to its memory: %w", err)
	}
	if end := at + uint64(len(data)); at < t.wrote.Start || end > t.wrote.End {
		t.wrote = PageRange{Start: at, End: end}
	}
	return nil
}
