package testbed

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/criu"
)

// ThisHost describes this machine.
func ThisHost(tool criu.Tool) (results.Host, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return results.Host{}, fmt.Errorf("kernel version: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return results.Host{}, fmt.Errorf("load of the machine: %w", err)
	}
	return results.Host{
		Load:  float64(info.Loads[0]) / (1 << 16), // SI_LOAD_SHIFT of linux/sysinfo.h
		Cores: runtime.NumCPU(), Architecture: runtime.GOARCH,
		Kernel: unix.ByteSliceToString(name.Release[:]), CRIU: tool.Version.String(),
	}, nil
}
