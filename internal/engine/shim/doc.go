// Package shim is the runtime shim godwit-runc, through which containers of OCI engines arrive: an OCI
// runtime that an engine calls in place of runc.
//
// It passes all calls on to runc, with one exception. If it is to create a container for which an agent has
// prepared a restore directory (Dir), runc restores the container instead, through the restore proxy of
// package criu. The call thus waits until the container's state is here and the agent lets it run. By then
// the engine has prepared the surroundings (file system, network, standard output, cgroup), and the engine
// learns the runtime's results (a process, its exit) as for any other container. The start that follows
// finds a running container, which is its goal.
//
// For an engine that makes the network between create and start, create returns earlier, with the PID of a
// process that exists before the container's first one; start waits for the container
// (criu.AwaitPlaceholder).
//
// The agent and godwit-runc meet in a directory that is named by the engine's own id of the container.
// Containers that are only started need no agent, so a stopped agent does not block them. A container with
// a job in its restore directory is never created from scratch: it is restored, once, or the create fails.
package shim
