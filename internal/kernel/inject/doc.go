// Package inject makes another process make system calls, as if the process had chosen to: open a
// userfaultfd, take over files, take locks, exchange a listener, or give a reserved PID to a child.
//
// A thread of the process is stopped (ptrace(2)), made to make the calls at a system call instruction that
// its memory has anyway, and let go with its own registers and signal mask. If this process dies meanwhile,
// the thread finds its way back by itself, where that is possible (heal.go).
package inject
