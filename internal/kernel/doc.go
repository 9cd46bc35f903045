// Package kernel is, with the packages below it, the only access to the Linux kernel: raw system calls,
// pidfds, the memory of processes, facts about processes and the machine, and probes for kernel features.
// Package cgroup freezes control groups; package inject makes other processes make system calls.
//
// Everything that needs an ioctl number, an unsafe pointer or the layout of a file in /proc or /sys is
// here, so that only these packages depend on the kernel's version. They know nothing of containers, CRIU,
// migrations or other nodes.
package kernel
