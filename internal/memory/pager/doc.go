// Package pager fills the memory of restored processes while they run.
//
// A restore that leaves memory out takes milliseconds, however much memory there is. The rest is then
// filled from an image of a memory.Store through userfaultfds: touched pages at once, the others in the
// background.
//
// If the filling process dies, the kernel lets missing pages read as zeros, silently. So the pager is a
// separate process, which outlives the agent that started it, and has a guard (cgroup.Guard): if the pager
// ends in any way before the memory is complete, the container is killed before it can see a single zero.
//
// Some of the memory may still be elsewhere when the processes run: remote pages. A process that fetches
// them connects to the pager (DialRemote, protocol.go), and needs to know nothing else: the pager knows
// what is missing, and who waits for what.
//
// The package knows how CRIU passes userfaultfds (criu.LazyRestore), and nothing of engines, nodes or
// migrations.
package pager
