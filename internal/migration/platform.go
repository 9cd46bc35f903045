package migration

import (
	"fmt"
	"slices"
	"strings"
)

// Platform is what a node is, as far as it matters to processes that move there.
type Platform struct {
	Architecture string   `json:"architecture"` // as in GOARCH
	CPUModel     string   `json:"cpu_model"`
	CPUFeatures  []string `json:"cpu_features"` // as in /proc/cpuinfo
	Kernel       string   `json:"kernel"`
	CRIU         string   `json:"criu"`
	PageBytes    int      `json:"page_bytes"`
}

// Compare lists what stands against processes of the source running on the target, and what is only worth knowing. A
// process may have found out at its start what the CPU can do, and keeps using it.
func Compare(source, target Platform) (problems []Problem, warnings []string) {
	if source.Architecture != target.Architecture {
		return []Problem{{
			What:   fmt.Sprintf("architecture %s", target.Architecture),
			Why:    fmt.Sprintf("the container runs on %s: its machine code and registers mean nothing there", source.Architecture),
			Remedy: "choose a node of the same architecture",
		}}, nil
	}
	if source.PageBytes != target.PageBytes {
		problems = append(problems, Problem{
			What:   fmt.Sprintf("page size %d", target.PageBytes),
			Why:    fmt.Sprintf("the container's memory has pages of %d bytes", source.PageBytes),
			Remedy: "choose a node with a kernel of the same page size",
		})
	}
	if missing := missingFeatures(source.CPUFeatures, target.CPUFeatures); len(missing) > 0 {
		problems = append(problems, Problem{
			What:   "CPU " + bounded(target.CPUModel, maxName),
			Why:    "it lacks what the source's has and the container may use: " + bounded(strings.Join(missing, " "), maxText),
			Remedy: "choose a node whose CPU is the same or newer, or give virtual machines a common CPU model",
		})
	}
	if source.Kernel != target.Kernel {
		warnings = append(warnings, fmt.Sprintf("kernels differ: %s and %s", source.Kernel, target.Kernel))
	}
	if source.CRIU != target.CRIU {
		warnings = append(warnings, fmt.Sprintf("versions of CRIU differ: %s and %s", source.CRIU, target.CRIU))
	}
	return problems, warnings
}

func missingFeatures(source, target []string) []string {
	var missing []string
	for _, feature := range source {
		if !slices.Contains(target, feature) {
			missing = append(missing, feature)
		}
	}
	return missing
}
