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

// guests finds processes of others in namespaces of a container, by `--network container:` or
// `--ipc container:`: that they share it only their own engine's configuration says, and not the
// container's. The node's own namespaces are everybody's.
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
			// it may have ended
			if its, err := os.Readlink(filepath.Join(link, "ns", kind)); err != nil || its != namespace {
				continue
			}
			// One that has ended, and that its parent has not waited for, has left the container's
			// control group.
			if process, err := kernel.ReadProcess(pid); err == nil &&
				(!process.Exiting || process.Threads > 1) {
				found = append(found, engine.Problem{
					What: fmt.Sprintf("process %d (%s) of the node or of another container", pid,
						process.Name),
					Why:    "it is in the container's " + kind + " namespace, and would have to move with it",
					Remedy: "end it, or start it without that",
				})
				break // one of them says enough
			}
		}
	}
	return found, nil
}
