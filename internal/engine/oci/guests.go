package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// guests finds processes of other containers in namespaces of a container, by `--network container:` or
// `--ipc container:`. Only the other containers' configuration mentions the sharing. The node's own
// namespaces do not count.
func guests(first int, own []int) ([]engine.Problem, error) {
	links, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []engine.Problem
	for _, kind := range []string{"net", "ipc", "pid", "uts"} {
		namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", first, kind))
		if err != nil {
			return nil, err
		}
		if hosts, err := os.Readlink("/proc/self/ns/" + kind); err != nil || hosts == namespace {
			continue
		}
		for _, link := range links {
			pid, err := strconv.Atoi(filepath.Base(link))
			if err != nil || slices.Contains(own, pid) {
				continue
			}
			// the process may have ended
			if its, err := os.Readlink(filepath.Join(link, "ns", kind)); err != nil || its != namespace {
				continue
			}
			// A process that has ended, but for which its parent has not waited, has left the container's
			// control group.
			if process, err := kernel.ReadProcess(pid); err == nil &&
				(!process.Exiting || process.Threads > 1) {
				found = append(found, engine.Problem{
					What: fmt.Sprintf("process %d (%s) of the node or of another container", pid,
						process.Name),
					Why:    "it is in the container's " + kind + " namespace, and would have to move with it",
					Remedy: "end it, or start it without that",
				})
				break // one of them is enough
			}
		}
	}
	return found, nil
}
