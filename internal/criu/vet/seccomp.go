package vet

import (
	"errors"
	"fmt"
	"slices"

	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// dangerous are system calls with which a process can attack its node if it also has a capability or finds
// a kernel bug. Usual filters refuse them.
var dangerous = map[string]uint32{
	"add_key": unix.SYS_ADD_KEY, "bpf": unix.SYS_BPF, "delete_module": unix.SYS_DELETE_MODULE,
	"finit_module": unix.SYS_FINIT_MODULE,
	"init_module":  unix.SYS_INIT_MODULE, "kexec_load": unix.SYS_KEXEC_LOAD, "keyctl": unix.SYS_KEYCTL,
	"mount":      unix.SYS_MOUNT,
	"move_pages": unix.SYS_MOVE_PAGES, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT,
	"perf_event_open": unix.SYS_PERF_EVENT_OPEN,
	"pivot_root":      unix.SYS_PIVOT_ROOT, "process_vm_writev": unix.SYS_PROCESS_VM_WRITEV,
	"ptrace": unix.SYS_PTRACE, "reboot": unix.SYS_REBOOT,
	"request_key": unix.SYS_REQUEST_KEY, "setns": unix.SYS_SETNS, "settimeofday": unix.SYS_SETTIMEOFDAY,
	"swapon":  unix.SYS_SWAPON,
	"umount2": unix.SYS_UMOUNT2, "unshare": unix.SYS_UNSHARE, "userfaultfd": unix.SYS_USERFAULTFD,
}

// refusals are the actions that keep a system call from having an effect.
var refusals = []specs.LinuxSeccompAction{
	specs.ActErrno, specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActTrap,
}

// forbidden lists the system calls that a container's filter certainly refuses, whatever their arguments.
func forbidden(filter *specs.LinuxSeccomp) (numbers []uint32) {
	for name, number := range dangerous {
		if refused, _ := treats(filter, name); refused {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// treats reports whether a filter certainly refuses a system call, or certainly lets it through, whatever its
// arguments. Both are false if the answer depends on the arguments.
func treats(filter *specs.LinuxSeccomp, name string) (refused, passed bool) {
	if filter == nil {
		return false, true
	}
	refused = slices.Contains(refusals, filter.DefaultAction)
	passed = !refused
	first := true
	for _, rule := range filter.Syscalls {
		if !slices.Contains(rule.Names, name) {
			continue
		}
		if first {
			refused, passed, first = true, true, false
		}
		refuses := slices.Contains(refusals, rule.Action)
		refused = refused && len(rule.Args) == 0 && refuses
		passed = passed && len(rule.Args) == 0 && !refuses
	}
	return refused, passed
}

// Passed lists the dangerous system calls that a filter certainly lets through; nil lets all through. The
// list is never nil.
func Passed(filter *specs.LinuxSeccomp) []string {
	names := []string{}
	for name := range dangerous {
		if _, passed := treats(filter, name); passed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Refused lists those of the passed system calls that this filter forbids: Images would refuse a process that
// may make them. The names come from another node; unknown names are ignored.
func Refused(filter *specs.LinuxSeccomp, passed []string) (names []string) {
	for name := range dangerous {
		if refused, _ := treats(filter, name); refused && slices.Contains(passed, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Modes of filtering (images/core.proto).
const modeFilter = 2

// filter is a filter in the image. Processes use a filter together with the filters before it.
type filter struct {
	program []instruction
	before  int      // -1: none
	passes  []uint32 // calls that must be refused but pass this filter and those before it
	shared  bool     // all threads of a process have it and those before it
}

// flagSync is SECCOMP_FILTER_FLAG_TSYNC. If all threads of a process have the same filters, CRIU writes
// them for the first thread only, with this flag.
const flagSync = 1

// maxFilters bounds the filters of a dump; each process can have 32768 instructions in its filters.
const maxFilters = 1 << 16

// readFilters reads the filters of all processes, and runs each on the system calls that must be refused.
func (v *vetted) readFilters() error {
	const name = "seccomp.img"
	return v.dir.each(name, magicSeccomp, func(data []byte) error {
		var entry seccomp.SeccompEntry
		if err := decode(data, &entry); err != nil {
			return err
		}
		if len(entry.GetSeccompFilters()) > maxFilters || v.filters != nil {
			return fmt.Errorf("%w: it has too many filters", errFormat)
		}
		for i, one := range entry.GetSeccompFilters() {
			f := filter{before: -1}
			if one.Prev != nil {
				if f.before = int(one.GetPrev()); f.before >= i {
					return fmt.Errorf("%w: filter %d follows filter %d", errFormat, i, f.before)
				}
			}
			var err error
			if f.program, err = parseProgram(one.GetFilter()); err != nil {
				return fmt.Errorf("filter %d: %w", i, err)
			}
			f.passes = v.passed(f)
			f.shared = one.GetFlags()&flagSync != 0 && (f.before < 0 || v.filters[f.before].shared)
			v.filters = append(v.filters, f)
		}
		return nil
	})
}

// passed lists the system calls that must be refused but pass a filter and those before it.
func (v *vetted) passed(f filter) (numbers []uint32) {
	candidates := v.agreed.Forbidden
	if f.before >= 0 {
		candidates = v.filters[f.before].passes
	}
	for _, number := range candidates {
		if !refuses(run(f.program, number)) {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// refuses reports whether this answer of a filter keeps a system call from having an effect
// (include/uapi/linux/seccomp.h).
func refuses(answer uint32) bool {
	const action = 0xffff0000
	switch answer & action {
	case 0x80000000, 0x00000000, 0x00030000, 0x00050000: // KILL_PROCESS, KILL_THREAD, TRAP, ERRNO
		return true
	}
	return false
}

// filtered requires a thread's system calls to be filtered as agreed.
func (v *vetted) filtered(t, leader *core.ThreadCoreEntry) error {
	mode := int32(t.GetSeccompMode())
	if mode == 0 && leader != nil && v.share(leader) {
		return nil // as the leader's are
	}
	if mode != modeFilter {
		if v.agreed.Filtered && mode == 0 {
			return errors.New("its system calls are not filtered, which the container's definition wants " +
				"(seccomp)")
		}
		return nil
	}
	index := int(t.GetSeccompFilter())
	if index >= len(v.filters) {
		return fmt.Errorf("%w: it has filter %d of %d", errFormat, index, len(v.filters))
	}
	if passes := v.filters[index].passes; v.agreed.Filtered && len(passes) > 0 {
		return fmt.Errorf("its filter of system calls lets %s through, which the container's definition "+
			"forbids (seccomp)", nameCall(passes[0]))
	}
	return nil
}

// share reports whether the other threads of a process have the filters of the first.
func (v *vetted) share(leader *core.ThreadCoreEntry) bool {
	index := int(leader.GetSeccompFilter())
	return int32(leader.GetSeccompMode()) == modeFilter && index < len(v.filters) && v.filters[index].shared
}

func nameCall(number uint32) string {
	for name, n := range dangerous {
		if n == number {
			return name
		}
	}
	return fmt.Sprint(number)
}
