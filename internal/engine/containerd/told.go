package containerd

import (
	"strings"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine/oci"
)

// told is containerd's answer about a container.
type told struct {
	namespace string
	container *containers.Container
	process   *task.Process // nil: there is no process
	spec      specs.Spec
}

func native(found oci.Container) told {
	all, _ := found.Native.(told) // Find has put it there
	return all
}

// nameOf returns a container's name for people: its ID, after its namespace unless that is ctr's default.
func nameOf(engineID string) string {
	return strings.Replace(strings.TrimPrefix(engineID, defaultNamespace+"/"), "/", ".", 1)
}
