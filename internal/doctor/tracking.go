package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/godwit/godwit/internal/kernel"
)

// trackingChecks report how pre-copy will detect a container's writes here. A process with which the best
// way does not work (another process traces it, it is a 32-bit program) is tracked in the next best way.
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

// noTracing is the value of kernel.yama.ptrace_scope that forbids tracing even to root
// (Documentation/admin-guide/LSM/Yama.rst).
const noTracing = "3"

// unlessUnsupported returns unknown if a probe has failed for another reason than a missing kernel feature.
func unlessUnsupported(err error) finding {
	if errors.Is(err, kernel.ErrUnsupported) {
		return missing("by comparing")
	}
	return unknown(err)
}
