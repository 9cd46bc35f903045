package leaving

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/residual"
)

// residualTime bounds the reading of a container that has left: until then its memory is used here, too.
const residualTime = 10 * time.Second

// KeepResidual keeps a residual memory copy: it reads the memory of the frozen container, which runs
// elsewhere by now, before the container is destroyed. A failure does not matter to the migration.
func (m *Memory) KeepResidual(ctx context.Context) {
	keep := max(m.config.Settings.Get().KeepResidual, m.config.Residual.Keep())
	offer := m.config.Terms.Offer()
	if keep == 0 || offer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, residualTime)
	defer cancel()
	of := residual.Origin{ID: m.config.Migration, Container: m.config.Container.Name,
		ContainerID: m.config.Container.ID, Peer: m.config.Target, Node: m.config.Node}
	made, err := m.config.Residual.Copies.Read(ctx, of, offer.MemoryBytes, m.config.Residual.Dir, keep,
		func() ([]int, error) { return m.processes(ctx) })
	if made == nil {
		m.config.Figures.Decided(fmt.Sprintf("no residual memory copy was kept: %v", err))
		return
	}
	part := ""
	if err != nil {
		part = fmt.Sprintf(", not all of it: %v", err)
	}
	m.config.Residual.Copies.Add(made)
	m.config.Figures.Decided(fmt.Sprintf("a residual memory copy of %d MiB was kept%s", made.Bytes()>>20,
		part))
}

// Unmount unmounts what an agent that was killed may have left mounted.
func (m *Memory) Unmount() error { return kernel.UnmountMemory(m.config.Residual.Dir) }
