package kernel

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The way back on x86_64. The stack pointer is at a chain of addresses of instructions, which end with
// the return from a signal handler: the kernel takes all registers, the signal mask and the state of the
// floating point unit from a signal frame, which was made of what the thread had.
//
//	system call; ret        userfaultfd: the tracer has stopped the thread here
//	xchg %eax, %edi; ret    the descriptor becomes an argument (or mov)
//	pop %rax; ret           3, the number of close
//	system call; ret
//	rt_sigreturn            with the frame
//
// Small static programs may lack some of the instructions: without the second or third, the descriptor
// stays open.
const (
	frameSize  = 440 // struct rt_sigframe of arch/x86/include/asm/sigframe.h
	chainSize  = 5 * 8
	fpAlign    = 64
	legacySize = 512 + 64 // FXSAVE area and XSAVE header

	ntX86XState = 0x202 // NT_X86_XSTATE

	fpMagic1 = 0x46505853 // FP_XSTATE_MAGIC1 of arch/x86/include/uapi/asm/sigcontext.h
	fpMagic2 = 0x46505845

	ucFlags = 1 | 2 | 4 // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS

	sysClose = 3
)

// errors of a system call that the kernel would restart (include/linux/errno.h).
const (
	errRestartSys   = 512
	errRestartNoInt = 513
	errRestartNoHnd = 514
	errRestartBlock = 516
)

// healing has the addresses by which a stopped thread finds its way back.
type healing struct {
	chain uint64 // closes the descriptor
	end   uint64 // does not close it
}

func cpuid(leaf, subleaf uint32) (a, b, c, d uint32)

// layOut makes the image of the way back for this address.
func (t *Tracee) layOut(image []byte, at uint64) (healing, error) {
	state, err := t.floatingPoint()
	if err != nil {
		return healing{}, err
	}
	// the frame's first word is the address that leads to it
	const chain, frame = healSlack, healSlack + chainSize - 8
	fp := (frame + frameSize + fpAlign - 1) / fpAlign * fpAlign
	if fp+len(state) > len(image) {
		return healing{}, errors.New("its floating point state is too large")
	}
	for i, word := range []uint64{cmp.Or(t.gadget.exchange, t.gadget.move), t.gadget.popRAX, sysClose,
		t.gadget.syscallReturn, t.gadget.sigreturn} {
		binary.LittleEndian.PutUint64(image[chain+i*8:], word)
	}
	t.fillFrame(image[frame:], t.regs.afterRestart(), t.mask, at+uint64(fp))
	copy(image[fp:], state)
	way := healing{chain: at + chain, end: at + frame}
	if !t.gadget.canClose() {
		way.chain = way.end
	}
	return way, nil
}

// callFrameSize is the part of a frame that a system call needs: without struct siginfo.
const (
	callFrameSize = 312
	callArgument  = 112 // offset of the first argument
)

// wayTo leads to a frame.
func wayTo(frame uint64) healing { return healing{chain: frame, end: frame} }

// layOutCall fills the frame of a system call, after which the thread continues on a way.
func (t *Tracee) layOutCall(frame []byte, way healing, number uint64, arguments [5]uint64) {
	r := t.regs
	r.call(t.gadget, way, number, arguments)
	binary.LittleEndian.PutUint64(frame, t.gadget.sigreturn)
	t.fillFrame(frame, r, ^uint64(0), 0)
}

// fillFrame writes struct rt_sigframe except its first word. fp is the address of the floating point state;
// 0 means none.
func (t *Tracee) fillFrame(frame []byte, r registers, mask, fp uint64) {
	put := func(offset int, v uint64) { binary.LittleEndian.PutUint64(frame[offset:], v) }
	put(8, ucFlags)
	put(32, 0x7fff) // invalid flags of a sigaltstack, so that it stays unchanged
	for i, v := range []uint64{r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15, r.Rdi, r.Rsi, r.Rbp,
		r.Rbx, r.Rdx, r.Rax, r.Rcx,
		r.Rsp, r.Rip, r.Eflags, r.Cs&0xffff | r.Ss<<48} {
		put(48+i*8, v)
	}
	put(232, fp)
	put(304, mask)
}

// afterRestart returns the registers of a thread when the kernel has handled the interrupted system call,
// as it does after a signal (arch/x86/kernel/signal.c, handle_signal). A call with a timeout would fail
// with EINTR there, which a program without signal handlers does not expect. So it starts again. (If it was
// interrupted before, it is restart_syscall(2), and fails all the same: rt_sigreturn makes the kernel
// forget where the call was.)
func (r registers) afterRestart() registers {
	if int64(r.Orig_rax) < 0 {
		return r
	}
	switch -int64(r.Rax) {
	case errRestartSys, errRestartNoInt, errRestartNoHnd, errRestartBlock:
		r.Rax = r.Orig_rax
		r.Rip -= uint64(len(syscallInstruction))
	}
	return r
}

// floatingPoint returns the state of the floating point unit in the format of a signal frame: the
// processor's XSAVE area, with a header of the kernel in unused bytes, and a mark at the end.
func (t *Tracee) floatingPoint() ([]byte, error) {
	buf := make([]byte, 16<<10)
	v := unix.Iovec{Base: &buf[0]}
	v.SetLen(len(buf))
	if err := t.Ptrace(unix.PTRACE_GETREGSET, ntX86XState, uintptr(unsafe.Pointer(&v))); err != nil {
		return nil, fmt.Errorf("read the floating point registers: %w", err)
	}
	if v.Len < legacySize {
		return nil, errors.New("no XSAVE")
	}
	features := binary.LittleEndian.Uint64(buf[512:]) | 3
	size := xsaveSize(features)
	if size > v.Len {
		return nil, fmt.Errorf("floating point state of %d bytes, XSAVE of %d", v.Len, size)
	}
	state := buf[:size+4]
	clear(state[464:512])
	binary.LittleEndian.PutUint32(state[464:], fpMagic1)
	binary.LittleEndian.PutUint32(state[468:], uint32(size+4))
	binary.LittleEndian.PutUint64(state[472:], features)
	binary.LittleEndian.PutUint32(state[480:], uint32(size))
	binary.LittleEndian.PutUint32(state[size:], fpMagic2)
	return state, nil
}

// xsaveSize returns the size of an XSAVE area with these features (CPUID leaf 13; offsets differ between
// vendors).
func xsaveSize(features uint64) uint64 {
	size := uint64(legacySize)
	for i := uint32(2); i < 63; i++ {
		if features&(1<<i) != 0 {
			length, offset, _, _ := cpuid(13, i)
			size = max(size, uint64(offset)+uint64(length))
		}
	}
	return size
}

// call sets the registers of a thread that is about to make a system call. Orig_rax says that the thread is
// in no call: otherwise the kernel would restart the interrupted call.
func (r *registers) call(g gadgets, way healing, number uint64, arguments [5]uint64) {
	r.Rip = g.syscall
	if way.chain != 0 {
		r.Rip, r.Rsp = g.syscallReturn, way.chain
		if number != unix.SYS_USERFAULTFD { // it makes no useless descriptor
			r.Rsp = way.end
		}
	}
	r.Rax, r.Orig_rax = number, ^uint64(0)
	r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8 = arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]
}
