// Package cgroup finds, freezes, limits and removes control groups of both versions, with all groups within
// them.
//
// Freeze stops all processes of a group; FreezeToMove (passing.go) does so at a moment at which CRIU can dump
// them: no thread is reading a clock or waiting in vfork(2), and each process has a free descriptor
// (full.go). A Guard kills the processes of a group when this process ends. The package knows no containers
// and no engines.
package cgroup
