// Package shim is the runtime shim godwit-runc, by which containers of OCI engines arrive: an OCI
// runtime that an engine calls in the place of runc.
//
// It is runc, to which it passes on all that it is asked, but for one thing. When it is to create a
// container for which an agent has prepared a restore directory (Dir), it has runc restore the
// container, through the restore proxy of package criu, and so waits until the container's state is
// here and the agent lets it run. What the engine prepares around that (its file system, network,
// standard output, cgroup) it has prepared by then, and what it learns from a runtime (a process,
// its exit) it learns as of any other container. The start that follows finds a container that
// runs, which is what it asks for.
//
// An engine that makes the network between create and start is given the number of a process that
// is there before the container's first one, by create, which returns then; start waits for the
// container (criu.AwaitPlaceholder).
//
// The agent and godwit-runc meet in a directory, by the engine's own id of the container: nothing
// is asked of an agent for containers that are only started, so an agent that does not run is in
// nobody's way. A container with a job in its restore directory is never created from scratch: it
// is restored, once, or the create fails.
package shim
