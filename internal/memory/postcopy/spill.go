package postcopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// A spill is a sealed file with pages that stayed at the source: the pages, in order of task and address,
// followed by their map. It is for a source that loses the frozen processes.

// maxSpilledMap is larger than any map with the permitted number of tasks and areas.
const maxSpilledMap = 64 << 20

// syncEvery bounds how much of a spill waits in memory for the disk, and so how long the end takes.
const syncEvery = 8 << 20

// SpillBytes bounds the disk space of a spill with this many bytes of memory.
func SpillBytes(content int64) int64 {
	// An area of the map takes 3 bytes, mostly, and is a page at least; a tag takes 16 in 64 KiB.
	const fixed, perByte = 1 << 20, 512
	return fixed + content + content/perByte
}

// Spill writes pages to a file that appears at path when all of it is on disk. The file is bound to owner.
// The writing thread gives way to others. If Spill fails, a file at path stays as it was, and an empty file
// at SpillBegun says that a spill is still wanted.
func Spill(ctx context.Context, path string, key SpillKey, owner string, maps []memory.TaskMap,
	pages Reader) error {
	l, err := newLayout(maps)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	if err := memory.EncodeMap(&list, maps); err != nil {
		return err
	}
	seal, err := newSealing(key, owner, memory.PageSize(), uint64(l.pages), uint64(list.Len()))
	if err != nil {
		return err
	}
	file, err := os.OpenFile(SpillBegun(path), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		kernel.GiveWay(kernel.Lowest)
		ended <- guard.Do(func() error { return writeSpill(ctx, file, seal, l, list.Bytes(), pages) })
	}()
	if err := <-ended; err != nil {
		return errors.Join(fmt.Errorf("write pages to %s: %w", path, err), file.Truncate(0), file.Close())
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := os.Rename(SpillBegun(path), path); err != nil {
		return err
	}
	return kernel.SyncDir(filepath.Dir(path))
}

// takeRoom makes the file system reserve the file's space, if it can, so that other writers, such as spills
// of other containers, do not make this spill fail half-way.
func takeRoom(file *os.File, bytes int64) error {
	err := error(unix.EINTR) // the Go runtime interrupts threads with signals
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, bytes)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return os.NewSyscallError("fallocate", err)
}

// SpillBegun returns the path of an incomplete spill.
func SpillBegun(path string) string { return path + ".new" }

// RemoveSpill removes a spill, complete or not. It is idempotent.
func RemoveSpill(path string) error {
	var failed error
	for _, name := range []string{SpillBegun(path), path} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// writeSpill writes the whole content, to the disk.
func writeSpill(ctx context.Context, file *os.File, seal *sealing, l *layout, list []byte,
	pages Reader) error {
	whole := sealedBytes(int64(l.pages)*int64(memory.PageSize()) + int64(len(list)))
	if err := takeRoom(file, whole); err != nil {
		return err
	}
	if _, err := file.Write(seal.header); err != nil {
		return err
	}
	out, size := newSealer(file, seal), memory.PageSize()
	buffer, unsynced := make([]byte, readPages*size), 0
	for n := 0; n < l.pages; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		task, address, end := l.place(n)
		content := buffer[:min(end-n, readPages)*size]
		if err := pages.Read(task, address, content); err != nil {
			return err
		}
		if _, err := out.Write(content); err != nil {
			return err
		}
		n += len(content) / size
		if unsynced += len(content); unsynced >= syncEvery {
			if err := file.Sync(); err != nil {
				return err
			}
			unsynced = 0
		}
	}
	_, err := out.Write(list)
	return errors.Join(err, out.flush(), file.Sync())
}

// Spilled are pages on the disk. It is a Reader.
type Spilled struct {
	file    *os.File
	content *opener
	layout  *layout
}

// OpenSpill opens a complete file, and checks everything that says which pages are in it. A page is checked
// when it is read.
func OpenSpill(path string, key SpillKey, owner string) (*Spilled, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &Spilled{file: file}
	status, err := file.Stat()
	if err == nil {
		err = s.open(file, status.Size(), key, owner)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pages in %s: %w", path, err), file.Close())
	}
	return s, nil
}

func (s *Spilled) open(file io.ReaderAt, length int64, key SpillKey, owner string) error {
	header := make([]byte, sealedHeader)
	if _, err := file.ReadAt(header, 0); err != nil {
		return sealedError(err)
	}
	seal, err := readSealing(header, key, owner, memory.PageSize())
	if err != nil {
		return err
	}
	pages := int64(seal.pages) * int64(memory.PageSize())
	s.content = &opener{sealing: seal, in: file, size: pages + int64(seal.rest)}
	if fault := sealedBytes(s.content.size); length != fault {
		return fmt.Errorf("%w: it has %d bytes instead of %d", ErrSealed, length, fault)
	}
	maps, err := memory.DecodeMap(io.NewSectionReader(s.content, pages, int64(seal.rest)))
	if err == nil {
		s.layout, err = newLayout(maps)
	}
	if err == nil && uint64(s.layout.pages) != seal.pages {
		err = fmt.Errorf("%w: a map of %d pages for %d", ErrSealed, s.layout.pages, seal.pages)
	}
	return err
}

// Read reads whole pages, as many as fit into the buffer.
func (s *Spilled) Read(task memory.Task, address uint64, buffer []byte) error {
	size := memory.PageSize()
	from, to, ok := s.layout.numbers(task, address, uint64(len(buffer)/size))
	if !ok || len(buffer)%size != 0 {
		return fmt.Errorf("not all of %d bytes at %#x of task %d were written to the disk",
			len(buffer), address, task)
	}
	_, err := s.content.ReadAt(buffer[:(to-from)*size], int64(from)*int64(size))
	return err
}

// Close ends the use.
func (s *Spilled) Close() error { return s.file.Close() }
