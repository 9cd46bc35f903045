// Package checkpoint dumps and restores the processes of a container with CRIU, whichever engine has made
// them. It finds obstacles, freezes the processes at a moment at which nothing is lost, dumps them so that
// they can continue, and resumes them. At the target it lets CRIU restore them through the restore proxy
// while their memory is filled.
//
// The package knows processes, cgroups, namespaces and CRIU. It does not know a container's name, where an
// engine keeps the container, or how the container is made and removed: the adapters below engine pass what
// it must know, and keep the records.
package checkpoint
