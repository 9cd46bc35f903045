package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The way back on arm64. The link register leads from the system call to the return from a signal handler
// in the vDSO, and the stack pointer is at its frame, struct rt_sigframe of arch/arm64/kernel/signal.c. The
// descriptor stays open.
const (
	frameFlags     = 128 + 24 // ss_flags in uc_stack, after struct siginfo
	frameMask      = 128 + 40 // uc_sigmask
	frameRegisters = 304 + 8  // regs in struct sigcontext, then sp, pc, pstate
	frameReserved  = 304 + 288
	frameSize      = frameReserved + 4096

	fpsimdMagic = 0x46508001 // arch/arm64/include/uapi/asm/sigcontext.h
	fpsimdSize  = 528
	sveMagic    = 0x53564501
	// of struct user_sve_header and of struct sve_context; the registers follow in the same layout
	sveHeader = 16

	ntFPRegisters = 2     // NT_PRFPREG
	ntSVE         = 0x405 // NT_ARM_SVE
	ntZA          = 0x40c // NT_ARM_ZA
	sveRegisters  = 1     // SVE_PT_REGS_SVE: they hold more than those of the floating point unit
)

// healing has the addresses by which a stopped thread finds its way back.
type healing struct {
	frame uint64
}

// layOut makes the image of the way back for this address.
func (t *Tracee) layOut(image []byte, at uint64) (healing, error) {
	frame := image[healSlack:]
	if len(frame) < frameSize {
		return healing{}, errors.New("no room for a signal frame")
	}
	fillFrame(frame, t.regs, t.mask)
	return healing{frame: at + healSlack}, t.floatingPoint(frame[frameReserved:frameSize])
}

// callFrameSize is the part of a frame that a system call needs: the kernel requires the record of the
// floating point unit, and searches for the end of the records.
const (
	callFrameSize = frameReserved + fpsimdSize + 16
	callArgument  = frameRegisters // offset of the first argument
)

// wayTo leads to a frame.
func wayTo(frame uint64) healing { return healing{frame: frame} }

// layOutCall fills the frame of a system call, after which the thread continues on a way.
func (t *Tracee) layOutCall(frame []byte, way healing, number uint64, arguments [5]uint64) {
	r := t.regs
	r.call(t.gadget, way, number, arguments)
	fillFrame(frame, r, ^uint64(0))
	binary.LittleEndian.PutUint32(frame[frameReserved:], fpsimdMagic)
	binary.LittleEndian.PutUint32(frame[frameReserved+4:], fpsimdSize)
}

// fillFrame writes struct rt_sigframe except its records.
func fillFrame(frame []byte, r registers, mask uint64) {
	// invalid flags of a sigaltstack, so that it stays unchanged
	binary.LittleEndian.PutUint32(frame[frameFlags:], 0x7fff)
	binary.LittleEndian.PutUint64(frame[frameMask:], mask)
	for i, v := range append(r.Regs[:], r.Sp, r.Pc, r.Pstate) {
		binary.LittleEndian.PutUint64(frame[frameRegisters+i*8:], v)
	}
}

// floatingPoint writes the record of the floating point unit and, if they are in use, that of the scalable
// vectors.
func (t *Tracee) floatingPoint(records []byte) error {
	state := make([]byte, fpsimdSize) // the vectors, then FPSR and FPCR, which come first in the record
	if n, err := t.registerSet(ntFPRegisters, state); err != nil || n < fpsimdSize-8 {
		return fmt.Errorf("read the floating point registers: %d bytes, %w", n, err)
	}
	binary.LittleEndian.PutUint32(records, fpsimdMagic)
	binary.LittleEndian.PutUint32(records[4:], fpsimdSize)
	copy(records[8:16], state[512:520])
	copy(records[16:], state[:512])
	if n, err := t.registerSet(ntZA, state[:sveHeader]); err == nil && n == sveHeader &&
		binary.LittleEndian.Uint32(state) > sveHeader {
		return errors.New("it uses the matrix registers (SME)")
	}
	return t.vectors(records[fpsimdSize:])
}

// vectors writes struct sve_context, if the thread uses these registers; the kernel discards them in a
// system call.
func (t *Tracee) vectors(record []byte) error {
	state := make([]byte, 16<<10)
	n, err := t.registerSet(ntSVE, state)
	if err != nil || n < sveHeader || binary.LittleEndian.Uint16(state[12:])&sveRegisters == 0 {
		return nil // the processor has none, or they are unused
	}
	length := int(binary.LittleEndian.Uint16(state[8:]))
	size := (sveHeader + 32*length + 17*length/8 + 15) / 16 * 16 // 32 vectors, 16 predicates and FFR
	if size+8 > len(record) || size > n {
		return fmt.Errorf("its vectors of %d bytes are too long for a signal frame", length)
	}
	binary.LittleEndian.PutUint32(record, sveMagic)
	binary.LittleEndian.PutUint32(record[4:], uint32(size))
	copy(record[8:10], state[8:10])
	copy(record[sveHeader:size], state[sveHeader:])
	return nil
}

// registerSet reads a set of registers and returns its length.
func (t *Tracee) registerSet(number uintptr, into []byte) (int, error) {
	v := unix.Iovec{Base: &into[0]}
	v.SetLen(len(into))
	err := t.Ptrace(unix.PTRACE_GETREGSET, number, uintptr(unsafe.Pointer(&v)))
	return int(v.Len), err
}
