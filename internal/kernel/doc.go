// Package kernel is the only access to the Linux kernel: raw system calls, cgroup freezing, pidfds, facts
// about processes and the machine, and probes for kernel features.
//
// Everything that needs an ioctl number, an unsafe pointer or the layout of a file in /proc or /sys is
// here, so that only this package depends on the kernel's version. It knows nothing of containers, CRIU,
// migrations or other nodes.
package kernel
