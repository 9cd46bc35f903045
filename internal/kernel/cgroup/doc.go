// Package cgroup finds, freezes, limits and removes control groups of both versions: those of containers,
// with all groups within them.
//
// Freeze stops all processes of a group; FreezeToMove does so at a moment at which they can be dumped. A
// Guard kills the processes of a group when this process ends. The package knows nothing of containers and
// engines.
package cgroup
