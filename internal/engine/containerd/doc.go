// Package containerd moves containers that containerd runs by itself, in any of its namespaces except
// Docker's and Kubernetes'. It implements, with containerd's API, the operations that package oci needs.
//
// containerd has no names, only IDs, which are unique within a namespace: here the engine's ID of a
// container is NAMESPACE/ID. containerd keeps no log. A container's output goes to a file if the program
// that made the container has asked for that.
package containerd
