package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// registers has the layout of struct user_regs_struct.
type registers unix.PtraceRegs

// syscallInstruction is "syscall".
var syscallInstruction = [...]byte{0x0f, 0x05}

const userCode = 0x33 // __USER_CS: the code segment of 64-bit programs

func (r *registers) check() error {
	if r.Cs != userCode {
		return fmt.Errorf("%w: it runs 32-bit code", ErrUntraceable)
	}
	return nil
}

func (r *registers) result() uint64 { return r.Rax }

func (r *registers) stackPointer() uint64 { return r.Rsp }

func (r *registers) instruction() *uint64 { return &r.Rip }

// gadgets are instructions in a process's memory.
type gadgets struct {
	syscall       uint64 // syscall; the only required one
	syscallReturn uint64 // syscall; ret
	exchange      uint64 // xchg %eax, %edi; ret
	move          uint64 // mov %eax, %edi; ret
	popRAX        uint64 // pop %rax; ret
	sigreturn     uint64 // mov $15, %rax; syscall
}

func (g *gadgets) enough() bool { return g.syscall != 0 }

// complete reports whether all instructions for a way back with the close were found.
func (g *gadgets) complete() bool { return g.wayBack() && g.canClose() }

func (g *gadgets) wayBack() bool { return g.syscallReturn != 0 && g.sigreturn != 0 }

func (g *gadgets) canClose() bool { return (g.exchange != 0 || g.move != 0) && g.popRAX != 0 }

// list returns the wanted instructions. They need not be meant as such: two bytes in the middle of another
// instruction will do.
func (g *gadgets) list() []gadget {
	return []gadget{
		{&g.syscall, syscallInstruction[:]},
		{&g.syscallReturn, []byte{0x0f, 0x05, 0xc3}},
		{&g.exchange, []byte{0x97, 0xc3}},
		{&g.move, []byte{0x89, 0xc7, 0xc3}},
		{&g.popRAX, []byte{0x58, 0xc3}},
		{&g.sigreturn, []byte{0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05}},
	}
}

// ForkSyscalls are the numbers of clone, vfork and clone3.
var ForkSyscalls = [...]string{"56", "58", "435"}
