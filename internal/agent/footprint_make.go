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

// footprintTime bounds how long a container that has left is read, while it still takes its memory here.
const footprintTime = 10 * time.Second

// keepFootprint reads what the frozen container holds, which goes on elsewhere, before it is
// destroyed. That it cannot be done does not matter to the migration.
func (s *source) keepFootprint(ctx context.Context) {
	keep := max(s.settings.get().KeepFootprint, s.agent.ahead.footprintTime(s.definition.ID, s.agent.self.Name))
	if keep == 0 || s.offered == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, footprintTime)
	defer cancel()
	made, err := s.makeFootprint(ctx, keep)
	if made == nil {
		s.move.tracker.decided(fmt.Sprintf("no footprint was kept: %v", err))
		return
	}
	part := ""
	if err != nil {
		part = fmt.Sprintf(", not all of it: %v", err)
	}
	s.agent.footprints.add(made)
	s.move.tracker.decided(fmt.Sprintf("a footprint of %d MiB was kept%s", made.pages.Bytes()>>20, part))
}

// makeFootprint returns what could be read although it also returns an error: any part is of use.
func (s *source) makeFootprint(ctx context.Context, keep time.Duration) (*footprint, error) {
	s.agent.footprints.drop(s.definition.ID)
	room, err := s.agent.footprints.room(s.offered.MemoryBytes, 0)
	if err != nil {
		return nil, err
	}
	file, err := unswappedFile(s.footprintDir())
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	made := &footprint{
		definition: s.definition, pages: memory.NewFootprint(file, room), id: s.id(), target: s.target.Name,
		node: s.agent.self.Name, started: now, fresh: now, until: now.Add(keep),
	}
	// Nothing is tracked any more, only read: that works whatever has become of the tracker.
	processes := func() ([]int, error) { return s.agent.engines.EngineFor(s.definition).Processes(ctx, s.definition.ID) }
	pages := memory.NewSource(memory.SourceConfig{Processes: processes, Tracking: memory.Hashing})
	_, err = pages.Final(ctx, made.pages)
	err = errors.Join(err, pages.Close())
	made.incomplete = err != nil
	if made.pages.Bytes() == 0 {
		return nil, errors.Join(err, made.pages.Close())
	}
	return made, err
}

// footprintDir is where a footprint's memory is mounted for a moment.
func (s *source) footprintDir() string {
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
	err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=100%,noswap")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory that is not swapped: %w", err), os.Remove(path))
	}
	fd, err := unix.Open(path, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("file in memory: %w", err), unmountMemory(path))
	}
	return os.NewFile(uintptr(fd), "footprint"), unmountMemory(path)
}
