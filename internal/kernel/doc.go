// Package kernel is the one way to the Linux kernel: raw system calls, cgroup freezing, pidfds,
// facts about processes and the machine, and probes for kernel features.
//
// Everything that needs an ioctl number, an unsafe pointer or the layout of a file in /proc or /sys
// is here, so that a change of kernel is a change of this package. It knows nothing of containers,
// CRIU, migrations or other nodes.
package kernel
