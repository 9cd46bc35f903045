package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/files/parts"
)

// partsName is a file in a layer's directory with the parts of its archive, if they were ever needed. It is
// only a cache: errors in it are noticed when it is used.
const partsName = "parts"

// OpenArchive opens a layer's uncompressed archive.
func (s *Store) OpenArchive(diffID string) (io.ReadCloser, error) {
	dir, err := s.layerDir(diffID)
	if err != nil {
		return nil, err
	}
	blob, err := os.Open(filepath.Join(dir, blobName))
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", diffID, err)
	}
	plain, err := plainArchive(blob)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("layer %s: its archive: %w", diffID, err), blob.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, blob}, nil
}

// Parts emits the parts of a layer's archive, some at a time. The first call reads the whole archive.
func (s *Store) Parts(ctx context.Context, diffID string, emit func([]parts.Part) error) error {
	info, err := s.Layer(diffID)
	if err != nil {
		return err
	}
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	dir, err := s.layerDir(diffID)
	if err != nil {
		return err
	}
	if known, err := os.ReadFile(filepath.Join(dir, partsName)); err == nil {
		if list, err := parts.Read(bytes.NewReader(known), info.Archive); err == nil {
			return emit(list)
		}
	}
	if err := s.cutLayer(ctx, info, filepath.Join(dir, partsName), emit); err != nil {
		return fmt.Errorf("layer %s: %w", diffID, err)
	}
	return nil
}

// cutLayer finds the parts of a layer, and caches them.
func (s *Store) cutLayer(ctx context.Context, info LayerInfo, path string,
	emit func([]parts.Part) error) error {
	archive, err := s.OpenArchive(info.DiffID)
	if err != nil {
		return err
	}
	defer archive.Close()
	var all []byte
	err = parts.Cut(contextReader{ctx, archive}, info.Archive, func(more []parts.Part) error {
		all = parts.Append(all, more)
		return emit(more)
	})
	if err != nil {
		return err
	}
	_ = remember(path, all) // The next one reads the archive again.
	return nil
}

// remember writes a file that nobody needs if the machine stops now.
func remember(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), partsName+temporary)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// ExportParts writes some parts of a layer's archive.
func (s *Store) ExportParts(ctx context.Context, diffID string, list []parts.Part, runs []parts.Run,
	w io.Writer) error {
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	archive, err := s.OpenArchive(diffID)
	if err != nil {
		return err
	}
	defer archive.Close()
	if err := parts.Pick(contextReader{ctx, archive}, list, runs, w); err != nil {
		return fmt.Errorf("send parts of layer %s: %w", diffID, err)
	}
	return nil
}
