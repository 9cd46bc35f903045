package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/placement"
	"github.com/godwit/godwit/internal/residual"
)

// residualTime bounds the reading of a container that has left: until then its memory is used here, too.
const residualTime = 10 * time.Second

// keepResidual keeps a residual memory copy: it reads the memory of the frozen container, which runs
// elsewhere by now, before the container is destroyed. A failure does not matter to the migration.
func (s *source) keepResidual(ctx context.Context) {
	keep := max(s.settings.Get().KeepResidual,
		s.agent.placements.ResidualTime(s.definition.ID, s.agent.self.Name))
	if keep == 0 || s.offered == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, residualTime)
	defer cancel()
	of := residual.Origin{ID: s.id(), Container: s.definition.Name, ContainerID: s.definition.ID,
		Peer: s.target.Name, Node: s.agent.self.Name}
	made, err := s.agent.residuals.Read(ctx, of, s.offered.MemoryBytes, s.residualDir(), keep,
		func() ([]int, error) {
			return s.agent.engines.EngineFor(s.definition).Processes(ctx, s.definition.ID)
		})
	if made == nil {
		s.move.tracker.Decided(fmt.Sprintf("no residual memory copy was kept: %v", err))
		return
	}
	part := ""
	if err != nil {
		part = fmt.Sprintf(", not all of it: %v", err)
	}
	s.agent.residuals.Add(made)
	s.move.tracker.Decided(fmt.Sprintf("a residual memory copy of %d MiB was kept%s", made.Bytes()>>20,
		part))
}

// residualCopy describes the copy for the container's policy. If there is none, the result names no node.
func (s *source) residualCopy() placement.Copy {
	bytes, fresh, there := s.agent.residuals.Holds(s.definition.ID)
	if !there {
		return placement.Copy{}
	}
	return placement.Copy{Node: s.agent.self.Name, Bytes: bytes, Fresh: fresh}
}

// residualDir is where the memory of a residual copy is mounted for a moment.
func (s *source) residualDir() string {
	return filepath.Join(filepath.Dir(s.imagesDir()), "footprint")
}
