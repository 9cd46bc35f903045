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
}

func thisHost(tool criu.Tool) (Host, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Host{}, fmt.Errorf("kernel version: %w", err)
	}
	return Host{
		Cores: runtime.NumCPU(), Architecture: runtime.GOARCH,
		Kernel: unix.ByteSliceToString(name.Release[:]), CRIU: tool.Version.String(),
	}, nil
}
