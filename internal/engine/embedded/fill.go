package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// FillFrom makes Restore leave out the memory that can be filled while the processes run.
func (a *arrival) FillFrom(ctx context.Context, pages *memory.Store) error {
	err := a.coming.FillFrom(ctx, pages, pager.Config{
		Executable: a.engine.config.Executable, WorkDir: a.files.criuWork(), Report: a.files.memory(),
		Log: a.files.pagerLog(), Cgroup: a.files.cgroup(), Remote: a.files.remoteSocket(),
	})
	if err != nil {
		return fmt.Errorf("container %s: %w", a.definition.Name, err)
	}
	return nil
}

// Memory reports how much of a running container's memory has been filled.
func (e *Engine) Memory(_ context.Context, id string) (memory.FillReport, error) {
	place, err := e.find(id)
	if err != nil {
		return memory.FillReport{}, err
	}
	report, err := pager.ReadReport(place.memory())
	if err == nil && report.State == memory.FillNone {
		err = durable.Load(place.lost(), &report)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return memory.FillReport{}, fmt.Errorf("look at the memory of container %.12s: %w", id, err)
	}
	return report, nil
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
