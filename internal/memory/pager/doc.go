// Package pager fills the memory of restored processes while they run.
//
// A restore that leaves memory out takes milliseconds however much memory there is. What is left
// out is then filled from an image of a memory.Store through userfaultfds: at once what a process
// touches, the rest in the background.
//
// If who fills dies, the kernel lets what is missing read as zeros, silently. So the pager is a
// process of its own, which outlives the agent that started it, and it has a guard (kernel.Guard):
// whatever ends the pager before the memory is complete, the container is killed before a single
// zero can be seen.
//
// Some of the memory may still be elsewhere when the processes run: remote pages. Somebody who
// fetches them connects to the pager (DialRemote, protocol.go). That is all that is asked of them:
// what is missing, and who waits for what, the pager knows.
//
// The package knows how CRIU hands userfaultfds over (criu.LazyRestore), and nothing of engines,
// nodes or migrations.
package pager
