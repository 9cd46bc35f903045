package embedded

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/durable"
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

// keepLoss keeps the report on a container that was killed because its memory could not be completed. The
// report explains the container's end.
func keepLoss(place container) error {
	report, err := pager.ReadReport(place.memory())
	if err != nil || report.State != memory.FillLost {
		return err
	}
	return durable.Save(place.lost(), report)
}
