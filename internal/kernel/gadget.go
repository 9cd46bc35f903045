package kernel

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// gadgetWindow is how much of a mapping is searched at a time, and gadgetLimit how much in total.
const (
	gadgetWindow = 1 << 20
	gadgetLimit  = 32 << 20
)

// gadget is an instruction and its address; 0: not found.
type gadget struct {
	at    *uint64
	bytes []byte
}

// search looks for instructions that are not found yet in code at an address.
func (g *gadgets) search(code []byte, at uint64) {
	for _, one := range g.list() {
		if i := bytes.Index(code, one.bytes); *one.at == 0 && i >= 0 {
			*one.at = at + uint64(i)
		}
	}
}

// confirm checks, when the thread is stopped, that everything that look has found is still there.
func (t *Tracee) confirm() error {
	for _, one := range t.gadget.list() {
		if *one.at == 0 {
			continue
		}
		is := make([]byte, len(one.bytes))
		if err := t.read(*one.at, is); err != nil || !bytes.Equal(is, one.bytes) {
			return errMoved
		}
	}
	return nil
}

// look finds, before the thread is stopped, the required parts of the process's memory: instructions in its
// code, and the stack of its first thread. Every program has a system call instruction somewhere.
func (t *Tracee) look() error {
	t.gadget, t.stack, t.heal, t.scratch, t.wrote = gadgets{}, Mapping{}, healing{}, 0, PageRange{}
	space, err := OpenAddressSpace(t.PID)
	if err != nil {
		return err
	}
	defer space.Close()
	all, err := space.Mappings()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fs.ErrNotExist
	}
	if i := slices.IndexFunc(all, func(m Mapping) bool { return m.Name == "[stack]" }); i >= 0 {
		t.stack = all[i]
	}
	if t.shadow, err = hasShadowStack(t.PID); err != nil {
		return err
	}
	code := slices.DeleteFunc(all, func(m Mapping) bool {
		return !m.Executable || !m.Readable ||
			m.Name == "[vsyscall]"
	})
	slices.SortStableFunc(code, func(a, b Mapping) int { return cmp.Compare(codeRank(a), codeRank(b)) })
	r := space.Reader()
	window := make([]byte, gadgetWindow)
	budget := gadgetLimit
	for _, m := range code {
		for at := m.Start; at < m.End && budget > 0 && !t.gadget.complete(); at += gadgetWindow {
			n, err := r.Read([]PageRange{{Start: at, End: min(at+gadgetWindow, m.End)}},
				window[:min(gadgetWindow, m.End-at)])
			if err != nil {
				return err
			}
			budget -= n
			t.gadget.search(window[:n], at)
		}
	}
	if !t.gadget.enough() {
		if is32Bit(t.PID) { // it has other instructions
			return fmt.Errorf("%w: it is a 32-bit process", ErrUntraceable)
		}
		// perhaps it is not mapped yet
		return fmt.Errorf("%w: %w: no system call instruction in it", ErrUntraceable, errMoved)
	}
	return nil
}

// is32Bit looks at the header of a process's program (elf(5)).
func is32Bit(pid int) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	var header [5]byte
	_, err = io.ReadFull(f, header[:])
	return err == nil && header[4] == 1 // ELFCLASS32
}

// codeRank puts those mappings first that are likely to have the instructions.
func codeRank(m Mapping) int {
	switch {
	case strings.Contains(m.Name, "/libc") || strings.Contains(m.Name, "/ld-musl"):
		return 0
	case m.Name == "[vdso]":
		return 2
	default:
		return 1
	}
}

// hasShadowStack reports whether the processor checks returns (Documentation/arch/x86/shstk.rst).
func hasShadowStack(pid int) (bool, error) {
	features, err := ThreadStatus(pid, "x86_Thread_features")
	return strings.Contains(features, "shstk"), err
}
