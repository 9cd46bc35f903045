package embedded

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// FillFrom makes Restore leave out the memory that can be filled while the processes run.
func (a *arrival) FillFrom(ctx context.Context, pages *memory.Store) error {
	err := a.coming.FillFrom(ctx, pages, pager.Config{
		Executable: a.arrivals.processes.executable, WorkDir: a.files.criuWork(), Report: a.files.memory(),
		Log: a.files.pagerLog(), Cgroup: a.files.cgroup(), Remote: a.files.remoteSocket(),
	})
	if err != nil {
		return fmt.Errorf("container %s: %w", a.definition.Name, err)
	}
	return nil
}
