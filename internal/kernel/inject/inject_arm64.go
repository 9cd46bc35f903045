package inject

import "golang.org/x/sys/unix"

// registers has the layout of struct user_pt_regs.
type registers unix.PtraceRegsArm64

// syscallInstruction is "svc #0".
var syscallInstruction = [...]byte{0x01, 0x00, 0x00, 0xd4}

// branchType are the bits of PSTATE that record whether a thread came to its instruction by a jump that
// must end at a landing pad.
const branchType = 3 << 10

// check checks nothing: a 32-bit program has a smaller set of registers.
func (r *registers) check() error { return nil }

// call sets the registers of a thread that is about to make a system call. The kernel has prepared the
// restart of an interrupted call before the debugger sees the registers (arch/arm64/kernel/signal.c,
// do_signal), so restoring them is enough. A call with a timeout restarts with the full timeout.
func (r *registers) call(g gadgets, way healing, number uint64, arguments [5]uint64) {
	r.Pc = g.syscall
	if way.frame != 0 {
		r.Pc, r.Sp, r.Regs[30] = g.syscallReturn, way.frame, g.sigreturn
	}
	r.Pstate &^= branchType
	r.Regs[8] = number
	copy(r.Regs[:], arguments[:])
}

func (r *registers) result() uint64 { return r.Regs[0] }

func (r *registers) stackPointer() uint64 { return r.Sp }

func (r *registers) instruction() *uint64 { return &r.Pc }

// gadgets are instructions in a process's memory. The vDSO has all of them.
type gadgets struct {
	syscall       uint64 // svc #0; the only required one
	syscallReturn uint64 // svc #0; ret
	sigreturn     uint64 // mov x8, #139; svc #0
}

func (g *gadgets) enough() bool { return g.syscall != 0 }

func (g *gadgets) complete() bool { return g.wayBack() }

func (g *gadgets) wayBack() bool { return g.syscallReturn != 0 && g.sigreturn != 0 }

func (g *gadgets) list() []gadget {
	return []gadget{
		{&g.syscall, syscallInstruction[:]},
		{&g.syscallReturn, []byte{0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6}},
		{&g.sigreturn, []byte{0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4}},
	}
}

// ForkSyscalls are the numbers of clone and clone3.
var ForkSyscalls = [...]string{"220", "435"}
