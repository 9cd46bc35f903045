package vet

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// instruction is a classic BPF instruction (struct sock_filter of linux/filter.h).
type instruction struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

// maxInstructions is BPF_MAXINSNS, the kernel's limit for the length of a program.
const maxInstructions = 4096

func parseProgram(data []byte) ([]instruction, error) {
	const size = 8
	if len(data) == 0 || len(data)%size != 0 || len(data) > maxInstructions*size {
		return nil, fmt.Errorf("%w: a program of %d bytes", errFormat, len(data))
	}
	program := make([]instruction, 0, len(data)/size)
	for ; len(data) > 0; data = data[size:] {
		program = append(program, instruction{
			binary.LittleEndian.Uint16(data), data[2], data[3], binary.LittleEndian.Uint32(data[4:]),
		})
	}
	return program, nil
}

// allow is the result of a program that cannot be run here: it counts as refusing nothing.
const allow = 0x7fff0000

// machine is the state of a running program.
type machine struct {
	a, x uint32
	m    [16]uint32
	data [16]uint32 // struct seccomp_data
}

// run returns a filter's answer to a system call of this machine's native architecture with all arguments
// zero. Jumps only go forward, so every program terminates.
func run(program []instruction, call uint32) uint32 {
	s := machine{data: [16]uint32{call, auditArch()}}
	for pc := 0; pc < len(program); pc++ {
		in := program[pc]
		switch in.code & 7 {
		case unix.BPF_RET:
			if in.code&0x18 == unix.BPF_A {
				return s.a
			}
			return in.k
		case unix.BPF_JMP:
			pc += s.jump(in)
		default:
			if !s.step(in) {
				return allow
			}
		}
	}
	return allow
}

// jump returns the number of instructions to skip.
func (s *machine) jump(in instruction) int {
	operand := in.k
	if in.code&unix.BPF_X != 0 {
		operand = s.x
	}
	var taken bool
	switch in.code & 0xf0 {
	case unix.BPF_JA:
		return int(in.k)
	case unix.BPF_JEQ:
		taken = s.a == operand
	case unix.BPF_JGT:
		taken = s.a > operand
	case unix.BPF_JGE:
		taken = s.a >= operand
	case unix.BPF_JSET:
		taken = s.a&operand != 0
	}
	if taken {
		return int(in.jt)
	}
	return int(in.jf)
}

// step executes an instruction that neither jumps nor returns. False: the instruction is not allowed in a
// filter.
func (s *machine) step(in instruction) bool {
	switch in.code & 7 {
	case unix.BPF_LD, unix.BPF_LDX:
		value, ok := s.load(in)
		if in.code&7 == unix.BPF_LD {
			s.a = value
		} else {
			s.x = value
		}
		return ok
	case unix.BPF_ST, unix.BPF_STX:
		if in.k >= uint32(len(s.m)) {
			return false
		}
		s.m[in.k] = s.a
		if in.code&7 == unix.BPF_STX {
			s.m[in.k] = s.x
		}
		return true
	case unix.BPF_ALU:
		return s.calculate(in)
	}
	if in.code&0xf8 == unix.BPF_TXA {
		s.a = s.x
	} else {
		s.x = s.a
	}
	return true
}

func (s *machine) load(in instruction) (uint32, bool) {
	switch in.code & 0xe0 {
	case unix.BPF_IMM:
		return in.k, true
	case unix.BPF_MEM:
		if in.k < uint32(len(s.m)) {
			return s.m[in.k], true
		}
	case unix.BPF_ABS:
		if in.k%4 == 0 && in.k/4 < uint32(len(s.data)) {
			return s.data[in.k/4], true
		}
	case unix.BPF_LEN:
		return uint32(len(s.data) * 4), true
	}
	return 0, false
}

func (s *machine) calculate(in instruction) bool {
	operand := in.k
	if in.code&unix.BPF_X != 0 {
		operand = s.x
	}
	switch in.code & 0xf0 {
	case unix.BPF_ADD:
		s.a += operand
	case unix.BPF_SUB:
		s.a -= operand
	case unix.BPF_MUL:
		s.a *= operand
	case unix.BPF_DIV:
		if operand == 0 {
			return false
		}
		s.a /= operand
	case unix.BPF_OR:
		s.a |= operand
	case unix.BPF_AND:
		s.a &= operand
	case unix.BPF_XOR:
		s.a ^= operand
	case unix.BPF_LSH:
		s.a <<= operand
	case unix.BPF_RSH:
		s.a >>= operand
	case unix.BPF_NEG:
		s.a = -s.a
	default:
		return false
	}
	return true
}

// auditArch is the kernel's name for this machine's architecture in struct seccomp_data (linux/audit.h).
func auditArch() uint32 {
	if runtime.GOARCH == "arm64" {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}
