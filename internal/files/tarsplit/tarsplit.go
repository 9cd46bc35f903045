// Package tarsplit puts archives of image layers together again from their files and what was kept
// beside these when they were unpacked: headers and all else that is no content
// (github.com/vbatts/tar-split). Docker and Podman keep their layers so.
//
// An archive is the one that was unpacked, byte for byte, or reading it fails: each file is
// compared with what was in the archive. The files are read as what somebody else has put there.
// The package knows no engine, and where one keeps what.
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

// Sizes are those of archives whose size somebody has asked for. The name of what was kept of one
// is never another one's: it comes from the content. The zero value is ready.
type Sizes struct {
	mu    sync.Mutex
	known map[string]int64
}

// Of is the size of an archive.
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

// size adds up what an archive consists of.
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

// openEntries opens what was kept of an archive.
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

// Open opens the archive whose files are in a directory. A file that was changed since ends the
// reading with an error.
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

// files are those of a layer, which nothing in it can lead out of.
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
