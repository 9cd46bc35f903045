// Package containerd moves containers that containerd runs by itself, in any of its namespaces but
// Docker's and Kubernetes's: it is what package oci asks containerd for, by its API.
//
// containerd has no names beside ids, which are unique in a namespace only: here a container's own
// id is NAMESPACE/ID. It keeps no log; what a container writes goes to a file if who has made it
// has said so.
package containerd
