package kernel

import "errors"

// Machine is what must be compared before a process moves from one node to another.
type Machine struct {
	Architecture         string   `json:"architecture"` // as in GOARCH
	CPUModel             string   `json:"cpu_model"`
	CPUFeatures          []string `json:"cpu_features"` // sorted, as in /proc/cpuinfo
	KernelRelease        string   `json:"kernel_release"`
	PageSizeBytes        int      `json:"page_size_bytes"`
	MemoryTotalBytes     int64    `json:"memory_total_bytes"`
	MemoryAvailableBytes int64    `json:"memory_available_bytes"`
}

// ReadMachine reads the facts of the machine this process runs on.
func ReadMachine() (Machine, error) { return Machine{}, errors.ErrUnsupported }

// MissingFeatures lists the CPU features of source that target has not and that a program can see and use.
func MissingFeatures(source, target Machine) []string { return nil }

// MemoryAvailable is the kernel's estimate of memory that can be used without swapping, in bytes.
func MemoryAvailable() (int64, error) { return 0, errors.ErrUnsupported }
