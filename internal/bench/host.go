package bench

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu"
)

// Host is the machine on which a suite ran.
type Host struct {
	Cores        int    `json:"cores"`
	Architecture string `json:"architecture"`
	Kernel       string `json:"kernel"`
	CRIU         string `json:"criu"`
	// Load is the average number of runnable processes in the minute before: measurements on a busy machine
	// are slower.
	Load float64 `json:"load_average"`
}

func thisHost(tool criu.Tool) (Host, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Host{}, fmt.Errorf("kernel version: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Host{}, fmt.Errorf("load of the machine: %w", err)
	}
	return Host{
		Load:  float64(info.Loads[0]) / (1 << 16), // SI_LOAD_SHIFT of linux/sysinfo.h
		Cores: runtime.NumCPU(), Architecture: runtime.GOARCH,
		Kernel: unix.ByteSliceToString(name.Release[:]), CRIU: tool.Version.String(),
	}, nil
}
