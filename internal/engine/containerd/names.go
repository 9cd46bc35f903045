package containerd

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine/contentstore"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
)

// Name is the name of the engine.
const Name = "containerd"

// oldest is the oldest version that was tested.
const oldest = "1.6"

// DefaultSocket is containerd's default socket. In stateDir, containerd and its shims keep what does not
// survive a reboot.
const (
	DefaultSocket = "/run/containerd/containerd.sock"
	stateDir      = "/run/containerd"
)

// snapshotter is the snapshotter that uses overlays.
const snapshotter = oci.Snapshotter

// namePattern matches names that containerd accepts for namespaces and IDs (identifiers/validate.go).
var namePattern = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-](?:[A-Za-z0-9]+))*$`)

// kubernetes is the namespace of Kubernetes' pods.
const kubernetes = "k8s.io"

// others are namespaces whose containers belong to other programs: Docker's own engine moves Docker's, and
// Kubernetes would restart its own.
var others = []string{"moby", kubernetes}

// defaultNamespace is ctr's default. Names of containers in it omit the namespace.
const defaultNamespace = "default"

// engineID returns the engine's ID of a container; splitEngineID is its inverse.
func engineID(namespace, id string) string { return namespace + "/" + id }

func splitEngineID(engineID string) (namespace, id string) {
	namespace, id, _ = strings.Cut(engineID, "/")
	return namespace, id
}

func restoreDir(engineID string) string { return shim.InRoot(splitEngineID(engineID)) }

// within returns a context for calls in a namespace.
func within(ctx context.Context, namespace string) context.Context {
	return contentstore.Within(ctx, namespace)
}

func missing(err error) bool { return status.Code(err) == codes.NotFound }

// bundle returns the directory of a container's shim.
func bundle(namespace, id string) string {
	return filepath.Join(stateDir, "io.containerd.runtime.v2.task", namespace, id)
}
