package admission

import (
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
)

// ReadPlatform is what this node is, as far as it matters to processes that move here or away in a mode.
func ReadPlatform(mode migration.Mode) (migration.Platform, error) {
	machine, err := kernel.ReadMachine()
	if err != nil {
		return migration.Platform{}, err
	}
	platform := migration.Platform{
		Architecture: machine.Architecture, CPUModel: machine.CPUModel, CPUFeatures: machine.CPUFeatures,
		Kernel: machine.KernelRelease, PageBytes: machine.PageSizeBytes,
	}
	if platform.Cgroups, err = kernel.CgroupHierarchies(); err != nil {
		return platform, err
	}
	tool, err := criu.Find()
	if mode == migration.Restart {
		err = nil // nobody needs it
	}
	if err != nil {
		return platform, err
	}
	platform.CRIU = tool.Version.String()
	return platform, nil
}
