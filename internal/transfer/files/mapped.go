package files

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/kernel"
)

// mapped tells which files the processes of the container may write without a trace in the
// files' times: those that are mapped so that what they write to memory is written to the file, and
// those that they write past the page cache. Mappings that are not writable at the moment count:
// the kernel may make pages that are dirty already writable without a fault (mm/mprotect.c,
// can_change_shared_pte_writable), and it is faults that change a file's times.
func (s *Sender) mapped(ctx context.Context) (compare.Mapped, error) {
	pids, err := s.config.Container.Processes(ctx)
	if err != nil {
		return compare.Mapped{}, err
	}
	mapped := compare.Mapped{Inodes: map[uint64]bool{}, Names: map[string]bool{}}
	for _, pid := range pids {
		if err := addMapped(&mapped, pid); err != nil {
			return compare.Mapped{}, err
		}
	}
	return mapped, nil
}

// addMapped adds what a process may write so; nothing if it has ended.
func addMapped(mapped *compare.Mapped, pid int) error {
	space, err := kernel.OpenAddressSpace(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	mappings, err := space.Mappings()
	if err != nil {
		return err
	}
	direct, err := space.DirectWrites()
	if err != nil {
		return err
	}
	for _, m := range mappings {
		if m.Shared && m.File {
			name := path.Base(m.Name)
			mapped.Inodes[m.Inode], mapped.Names[name] = true, true
			// the kernel writes a line feed so (fs/proc/task_mmu.c)
			mapped.Names[strings.ReplaceAll(name, `\012`, "\n")] = true
		}
	}
	for _, f := range direct {
		mapped.Inodes[f.Inode], mapped.Names[path.Base(f.Path)] = true, true
	}
	return nil
}
