// Package tarsplit reassembles archives of image layers from their files and from what was kept when they
// were unpacked: headers and everything else that is not content (github.com/vbatts/tar-split). Docker and
// Podman keep their layers in this form.
//
// An archive is byte for byte the one that was unpacked, or reading it fails: each file is compared with
// what was in the archive. The files are read as untrusted data. The package knows no engine, and not where
// an engine keeps its layers.
package tarsplit

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/regular"
	"github.com/godwit/godwit/internal/guard"
)

// Sizes caches the sizes of archives. The name of the kept data is never reused, because it comes from the
// content. The zero value is ready.
type Sizes struct {
	mu    sync.Mutex
	known map[string]int64
}

// Of returns the size of an archive.
func (s *Sizes) Of(kept string) (int64, error) {
	s.mu.Lock()
	bytes, is := s.known[kept]
	s.mu.Unlock()
	if is {
		return bytes, nil
	}
	bytes, err := size(kept)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[string]int64{}
	}
	s.known[kept] = bytes
	return bytes, nil
}

// size adds up the parts of an archive.
func size(kept string) (bytes int64, err error) {
	entries, done, err := openEntries(kept)
	if err != nil {
		return 0, err
	}
	defer done()
	for {
		entry, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			return bytes, nil
		case err != nil:
			return 0, err
		case entry.Type == storage.FileType && (entry.Size < 0 || entry.Size > math.MaxInt64-bytes):
			return 0, fmt.Errorf("the record of the archive is damaged: a file of %d bytes after %d",
				entry.Size, bytes)
		case entry.Type == storage.FileType:
			bytes += entry.Size
		case int64(len(entry.Payload)) > math.MaxInt64-bytes:
			return 0, fmt.Errorf("the record of the archive is damaged: %d bytes after %d",
				len(entry.Payload), bytes)
		default:
			bytes += int64(len(entry.Payload))
		}
	}
}

// openEntries opens the kept data of an archive.
func openEntries(kept string) (entries storage.Unpacker, done func(), err error) {
	f, err := os.Open(kept)
	if err != nil {
		return nil, nil, err
	}
	plain, err := gzip.NewReader(f)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return storage.NewJSONUnpacker(plain), func() { _ = f.Close() }, nil
}

// Open opens the archive whose files are in a directory. Reading ends with an error at a file that was
// changed since.
func Open(kept, directory string) (io.ReadCloser, error) {
	tree, err := os.OpenRoot(directory)
	if err != nil {
		return nil, err
	}
	entries, done, err := openEntries(kept)
	if err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	out, in := io.Pipe()
	go func() {
		defer tree.Close()
		defer done()
		in.CloseWithError(
			guard.Do(func() error { return asm.WriteOutputTarStream(files{tree}, entries, in) }))
	}()
	return out, nil
}

// files are the files of a layer, which cannot lead out of it.
type files struct{ tree *os.Root }

// Get opens a file of an archive by the name that it has there.
func (l files) Get(name string) (io.ReadCloser, error) {
	inside := strings.TrimPrefix(path.Clean("/"+name), "/")
	held, err := l.tree.OpenFile(inside, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	f, err := regular.Reopen(int(held.Fd()), inside, 0)
	if err != nil {
		return nil, err // not a file in an interface
	}
	return f, nil
}
