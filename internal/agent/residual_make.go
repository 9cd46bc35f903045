package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/memory"
)

// residualTime bounds the reading of a container that has left: until then its memory is used here, too.
const residualTime = 10 * time.Second

// keepResidual keeps a residual memory copy: it reads the memory of the frozen container, which runs
// elsewhere by now, before the container is destroyed. A failure does not matter to the migration.
func (s *source) keepResidual(ctx context.Context) {
	keep := max(s.settings.Get().KeepResidual,
		s.agent.placements.residualTime(s.definition.ID, s.agent.self.Name))
	if keep == 0 || s.offered == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, residualTime)
	defer cancel()
	made, err := s.makeResidual(ctx, keep)
	if made == nil {
		s.move.tracker.Decided(fmt.Sprintf("no residual memory copy was kept: %v", err))
		return
	}
	part := ""
	if err != nil {
		part = fmt.Sprintf(", not all of it: %v", err)
	}
	s.agent.residuals.add(made)
	s.move.tracker.Decided(fmt.Sprintf("a residual memory copy of %d MiB was kept%s", made.pages.Bytes()>>20,
		part))
}

// makeResidual may return both a copy and an error: a part of the memory is of use, too.
func (s *source) makeResidual(ctx context.Context, keep time.Duration) (*residual, error) {
	s.agent.residuals.drop(s.definition.ID)
	room, err := s.agent.residuals.room(s.offered.MemoryBytes, 0)
	if err != nil {
		return nil, err
	}
	file, err := unswappedFile(s.residualDir())
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	made := &residual{
		definition: s.definition, pages: memory.NewResidual(file, room), id: s.id(), target: s.target.Name,
		node: s.agent.self.Name, started: now, fresh: now, until: now.Add(keep),
	}
	// Nothing is tracked any more, only read: that works whatever has become of the tracker.
	processes := func() ([]int, error) {
		return s.agent.engines.EngineFor(s.definition).Processes(ctx,
			s.definition.ID)
	}
	pages := memory.NewSource(memory.SourceConfig{Processes: processes, Tracking: memory.Hashing})
	_, err = pages.Final(ctx, made.pages)
	err = errors.Join(err, pages.Close())
	made.incomplete = err != nil
	if made.pages.Bytes() == 0 {
		return nil, errors.Join(err, made.pages.Close())
	}
	return made, err
}

// residualDir is where the memory of a residual copy is mounted for a moment.
func (s *source) residualDir() string {
	return filepath.Join(filepath.Dir(s.imagesDir()), "footprint")
}

// unswappedFile makes a file that is in memory only, and that the kernel does not write to swap
// space either: what a container held may be secret, and its owner does not expect it here any
// more. It is in a file system of its own (tmpfs with noswap, Linux 6.4), which goes with it: it is
// mounted at path for a moment.
func unswappedFile(path string) (*os.File, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"mode=0700,size=100%,noswap")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory that is not swapped: %w", err), os.Remove(path))
	}
	fd, err := unix.Open(path, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("file in memory: %w", err), unmountMemory(path))
	}
	return os.NewFile(uintptr(fd), "footprint"), unmountMemory(path)
}
