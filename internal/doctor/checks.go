package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/godwit/godwit/internal/kernel"
)

// check is one requirement and the way to check it.
type check struct {
	name   string
	level  Level
	lost   string
	advice Advice
	look   func(context.Context, machine) finding
}

// finding is the result of a check.
type finding struct {
	status  Status
	version string
	detail  string
}

func found(version, detail string) finding { return finding{Found, version, detail} }
func missing(detail string) finding        { return finding{Missing, "", detail} }
func unknown(err error) finding            { return finding{Unknown, "", err.Error()} }

// requirement returns the check's line in the report.
func (c check) requirement(ctx context.Context, m machine) Requirement {
	f := c.look(ctx, m)
	return Requirement{
		Name: c.name, Level: c.level, Status: f.status, Version: f.version, Detail: f.detail, Lost: c.lost,
		Advice: c.advice,
	}
}

// allChecks returns all requirements in reading order.
func allChecks() []check {
	checks := privilegeChecks()
	checks = append(checks, programChecks()...)
	checks = append(checks, kernelChecks(kernel.Features())...)
	checks = append(checks, trackingChecks()...)
	checks = append(checks, networkChecks()...)
	return append(checks, resourceChecks()...)
}

// neededCapabilities are those that CRIU, namespaces or mounts need, by their number in linux/capability.h.
var neededCapabilities = []struct {
	bit  uint
	name string
}{
	{0, "CAP_CHOWN"}, {1, "CAP_DAC_OVERRIDE"}, {5, "CAP_KILL"}, {6, "CAP_SETGID"}, {7, "CAP_SETUID"},
	{8, "CAP_SETPCAP"},
	{12, "CAP_NET_ADMIN"}, {13, "CAP_NET_RAW"}, {18, "CAP_SYS_CHROOT"}, {19, "CAP_SYS_PTRACE"},
	{21, "CAP_SYS_ADMIN"},
	{25, "CAP_SYS_TIME"}, {27, "CAP_MKNOD"},
}

const capabilitySysResource = 24

func privilegeChecks() []check {
	return []check{
		{
			name: "root", level: Required,
			lost: "containers, namespaces and CRIU need root and its capabilities",
			advice: Advice{General: "run as root (sudo godwit doctor); in a container, give it all " +
				"capabilities"},
			look: func(_ context.Context, m machine) finding {
				effective, err := m.capabilities()
				if err != nil {
					return unknown(err)
				}
				var lacking []string
				for _, capability := range neededCapabilities {
					if effective&(1<<capability.bit) == 0 {
						lacking = append(lacking, capability.name)
					}
				}
				if m.user() != 0 {
					return missing(fmt.Sprintf("this is user %d", m.user()))
				}
				if len(lacking) > 0 {
					return missing("without " + strings.Join(lacking, ", "))
				}
				return found("", "with the capabilities that are needed")
			},
		},
		{
			name: "CAP_SYS_RESOURCE", level: Recommended,
			lost: "containers with processes that are not root's cannot be moved: CRIU may not read " +
				"their limits",
			advice: Advice{General: "run outside of a container that drops capabilities"},
			look: func(_ context.Context, m machine) finding {
				effective, err := m.capabilities()
				switch {
				case err != nil:
					return unknown(err)
				case effective&(1<<capabilitySysResource) == 0:
					return missing("")
				}
				return found("", "")
			},
		},
	}
}

func programChecks() []check {
	return []check{
		{
			name: "criu", level: Required,
			lost:   "nothing can be checkpointed or restored",
			advice: adviceCRIU,
			look: func(ctx context.Context, m machine) finding {
				return program(ctx, m, "criu", "GODWIT_CRIU", "Version: ")
			},
		},
		{
			name: "runc", level: Required,
			lost:   "containers cannot be run or restored",
			advice: adviceRunc,
			look: func(ctx context.Context, m machine) finding {
				return program(ctx, m, "runc", "GODWIT_RUNC", "runc version ")
			},
		},
	}
}

// program looks for a program and asks for its version, which follows a prefix in the first line that has
// it.
func program(ctx context.Context, m machine, name, variable, prefix string) finding {
	path, err := m.findTool(name, variable)
	if err != nil {
		return missing(err.Error())
	}
	output, err := m.output(ctx, path, "--version")
	if errors.Is(err, context.DeadlineExceeded) {
		return unknown(err) // it exists, and is slow
	}
	if err != nil {
		return finding{Missing, "", fmt.Sprintf("%s does not run: %v", path, err)}
	}
	for line := range strings.Lines(output) {
		if version, ok := strings.CutPrefix(line, prefix); ok {
			return found(strings.TrimSpace(version), path)
		}
	}
	return finding{Missing, "", fmt.Sprintf("%s does not report its version as %s does", path, name)}
}

// feature is the part of a kernel.Feature that doctor uses.
type feature interface{ Probe() error }

// kernelChecks makes a check of each feature that the package kernel can probe.
func kernelChecks(features []kernel.Feature) []check {
	checks := make([]check, 0, len(features))
	for _, f := range features {
		meaning := meaningOf(f.Name)
		checks = append(checks, check{
			name: f.Name, level: meaning.level, lost: meaning.lost,
			advice: Advice{Debian: meaning.debian, General: "run a kernel that has it: " + f.Minimum},
			look:   func(context.Context, machine) finding { return probed(f) },
		})
	}
	return checks
}

func probed(f feature) finding {
	err := f.Probe()
	switch {
	case err == nil:
		return found("", "")
	case errors.Is(err, kernel.ErrUnsupported):
		return missing("")
	default:
		return unknown(err)
	}
}
