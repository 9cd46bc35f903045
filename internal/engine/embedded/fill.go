package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// FillFrom makes Restore leave out the memory that can be filled while the processes run.
func (a *arrival) FillFrom(ctx context.Context, pages *memory.Store) error {
	if a.pager != nil {
		return errors.New("the memory of this arrival has a source already")
	}
	p, err := pager.Start(ctx, pager.Config{
		Executable: a.engine.config.Executable, WorkDir: a.files.criuWork(), Report: a.files.memory(),
		Log: a.files.pagerLog(), Cgroup: a.files.cgroup(), Late: a.files.lateSocket(),
	})
	if err != nil {
		return fmt.Errorf("prepare to fill the memory of container %s: %w", a.definition.Name, err)
	}
	a.pager, a.pages = p, pages
	return nil
}

// takeShared takes shared memory out of what has come, for CRIU. It refuses what there is no room for.
func (a *arrival) takeShared() (map[string]*os.File, error) {
	if a.pages == nil {
		return a.inheritShared()
	}
	stats := a.pages.Stats()
	pages := stats.Pages + stats.LatePages + stats.SharedPages
	if limit := a.definition.Limits.MemoryBytes; limit > 0 && pages*int64(memory.PageSize()) > limit {
		return nil, fmt.Errorf("its processes have %d pages of %d bytes, more than its memory limit of %d bytes allows: memory "+
			"that processes shared is counted for each of them, and filled for each; move it cold", pages, memory.PageSize(), limit)
	}
	var err error
	if a.shared, err = a.pages.TakeObjects(); err != nil {
		return nil, err
	}
	return a.inheritShared()
}

// handOver gives the pages to the pager, which then waits for CRIU. It refuses what could not be filled: once the
// container runs there is no way back.
func (a *arrival) handOver(ctx context.Context) error {
	if a.pages == nil {
		return nil
	}
	if err := a.checkLeftOut(); err != nil {
		return err
	}
	image, err := a.pages.Seal()
	if err != nil {
		return err
	}
	return a.pager.Serve(ctx, image)
}

// inheritShared finds what of the shared memory that has come CRIU needs; it must all be here.
func (a *arrival) inheritShared() (map[string]*os.File, error) {
	wanted, err := criu.SharedFiles(a.files.images())
	if err != nil {
		return nil, err
	}
	here := make(map[uint64]*os.File, len(a.shared))
	for _, o := range a.shared {
		here[o.Inode] = o.File
	}
	inherit := make(map[string]*os.File, len(wanted))
	for _, w := range wanted {
		if here[w.Inode] == nil {
			return nil, fmt.Errorf("%w: shared memory of inode %d", memory.ErrPagesMissing, w.Inode)
		}
		inherit[w.Key] = here[w.Inode]
	}
	return inherit, nil
}

// sealShared adds the seals that had to wait until all is mapped.
func (a *arrival) sealShared() error {
	for i := range a.shared {
		if err := a.shared[i].Seal(); err != nil {
			return err
		}
	}
	return nil
}

// closeShared lets go of shared memory, which is the processes' now, or nobody's.
func (a *arrival) closeShared() {
	for _, o := range a.shared {
		_ = o.File.Close() // it is in memory
	}
	a.shared = nil
}

// checkLeftOut wants that every page that the dump left to others has come.
func (a *arrival) checkLeftOut() error {
	maps, err := leftOut(a.files.images())
	if err != nil {
		return err
	}
	return a.pages.Check(maps)
}

// leftOut is the memory whose content a dump has left to others.
func leftOut(images string) ([]memory.TaskMap, error) {
	left, err := criu.LeftOut(images)
	if err != nil {
		return nil, err
	}
	return taskMaps(left), nil
}

func taskMaps(left []criu.LazyMemory) []memory.TaskMap {
	maps := make([]memory.TaskMap, 0, len(left))
	for _, l := range left {
		m := memory.TaskMap{Task: memory.Task(l.PID)}
		for _, r := range l.Ranges {
			m.Areas = append(m.Areas, memory.Area{Start: r.Start, Pages: r.Pages})
		}
		maps = append(maps, m)
	}
	return maps
}

// Memory tells how far the memory of a container is that is filled while it runs.
func (e *Engine) Memory(_ context.Context, id string) (memory.FillReport, error) {
	place, err := e.find(id)
	if err != nil {
		return memory.FillReport{}, err
	}
	report, err := pager.ReadReport(place.memory())
	if err == nil && report.State == memory.FillNone {
		err = loadJSON(place.lost(), &report)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return memory.FillReport{}, fmt.Errorf("look at the memory of container %.12s: %w", id, err)
	}
	return report, nil
}

// keepLoss keeps the report on a container that was killed because its memory could not be completed, so that it can be
// told why it ended.
func keepLoss(place container) error {
	report, err := pager.ReadReport(place.memory())
	if err != nil || report.State != memory.FillLost {
		return err
	}
	return saveJSON(place.lost(), report)
}

// refuseFilling refuses to move a container whose memory is being filled, or has lost pages: a dump would not see what is
// missing, and would succeed without it.
func refuseFilling(place container) error {
	report, err := pager.ReadReport(place.memory())
	if err != nil {
		return err
	}
	switch {
	case report.State == memory.Filling && report.LateLeft > 0:
		return fmt.Errorf("%w: %d of %d pages of its memory are missing after its last move, %d of them still at the node "+
			"where it was; try again when they have come", engine.ErrBusy, report.LeftPages, report.Pages, report.LateLeft)
	case report.State == memory.Filling:
		return fmt.Errorf("%w: %d of %d pages of its memory are still being filled after its last move; try again in a moment",
			engine.ErrBusy, report.LeftPages, report.Pages)
	case report.LostPages > 0:
		return fmt.Errorf("%d pages of its memory were lost in its last move, and would be zeros after another; start it anew",
			report.LostPages)
	}
	return nil
}

// examineMemory finds out whether a container's memory is complete. It says nothing that changes from one look to the next.
func examineMemory(place container) ([]engine.Problem, error) {
	report, err := pager.ReadReport(place.memory())
	switch {
	case err != nil:
		return nil, err
	case report.State == memory.Filling:
		return []engine.Problem{{
			What:   "the container's memory",
			Why:    "it is still being filled after its last move",
			Remedy: "try again in a moment",
		}}, nil
	case report.LostPages > 0:
		return []engine.Problem{{
			What:   "the container's memory",
			Why:    "pages of it were lost in its last move; another would make zeros of them, and nobody would notice",
			Remedy: "start the container anew",
		}}, nil
	}
	return nil, nil
}
