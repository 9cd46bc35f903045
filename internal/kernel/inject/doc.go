// Package inject makes another process make system calls, as if the process had chosen to: open a
// userfaultfd, take over files, take locks, exchange a listener, or give a reserved PID to a child.
//
// The package stops a thread of the process (ptrace(2)), makes it execute the calls at a system call
// instruction that its memory has anyway, and lets it go with its own registers and signal mask. If this
// process dies meanwhile, the thread restores itself, where that is possible (heal.go).
//
// A Seizure (the memory-keeper) only holds threads: it keeps the memory of frozen processes readable, even if
// they are killed.
package inject
