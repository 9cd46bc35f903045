package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/godwit/godwit/internal/kernel"
)

// trackingChecks say in which way pre-copy will find out here what a container writes. A process
// with which the best way does not work (another one traces it, it is a 32-bit program) is followed
// in the next one.
func trackingChecks() []check {
	return []check{{
		name: "finding written memory", level: Recommended,
		lost: "pre-copy has to read and compare all memory in each round",
		advice: Advice{
			Debian: newerKernel,
			General: "run Linux 6.7 or later, on arm64 6.10, as root and outside of a container that " +
				"drops capabilities",
		},
		look: func(_ context.Context, m machine) finding {
			if strings.TrimSpace(m.traceScope()) == noTracing {
				return missing("kernel.yama.ptrace_scope is 3: no process may be traced until the machine " +
					"starts again")
			}
			protect := m.writeProtect()
			if protect == nil {
				return found("", "by asynchronous write-protection, the best way")
			}
			if err := m.softDirty(); err != nil {
				return unlessUnsupported(fmt.Errorf("%w; %w", protect, err))
			}
			return found("", fmt.Sprintf("by soft-dirty notes, the second best way: more is read in each "+
				"round (%v)", protect))
		},
	}}
}

// noTracing is the value of kernel.yama.ptrace_scope with which not even root may trace
// (Documentation/admin-guide/LSM/Yama.rst).
const noTracing = "3"

// unlessUnsupported is unknown if a probe has failed for another reason than a kernel that lacks something.
func unlessUnsupported(err error) finding {
	if errors.Is(err, kernel.ErrUnsupported) {
		return missing("by comparing")
	}
	return unknown(err)
}
