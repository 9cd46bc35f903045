package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// LayerInfo has the sizes of a layer.
type LayerInfo struct {
	DiffID  string `json:"diff_id"`
	Size    int64  `json:"size_bytes"`    // of its files
	Archive int64  `json:"archive_bytes"` // of its uncompressed archive
	Stored  int64  `json:"stored_bytes"`  // of its archive as stored, which ExportLayer sends
}

const (
	treeName = "fs"
	blobName = "layer.tar.zst"
	infoName = "layer.json"
)

// Layer returns the sizes of a layer that is here.
func (s *Store) Layer(diffID string) (LayerInfo, error) {
	dir, err := s.layerDir(diffID)
	if err != nil {
		return LayerInfo{}, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, infoName))
	if errors.Is(err, fs.ErrNotExist) {
		return LayerInfo{}, fmt.Errorf("layer %s is not on this node; load or pull an image that has it",
			diffID)
	}
	if err != nil {
		return LayerInfo{}, fmt.Errorf("layer %s: %w", diffID, err)
	}
	var info LayerInfo
	if err := json.Unmarshal(raw, &info); err != nil || info.DiffID != diffID {
		return LayerInfo{}, fmt.Errorf("layer %s: its description in %s is damaged", diffID, dir)
	}
	return info, nil
}

// HasLayer reports whether a layer is here.
func (s *Store) HasLayer(diffID string) bool {
	_, err := s.Layer(diffID)
	return err == nil
}

// LayerPath returns the directory with the content of a layer, as a lower directory for overlayfs. It must
// not be written to.
func (s *Store) LayerPath(diffID string) (string, error) {
	if _, err := s.Layer(diffID); err != nil {
		return "", err
	}
	dir, err := s.layerDir(diffID)
	return filepath.Join(dir, treeName), err
}

// ExportLayer writes a layer's archive in a form that ImportLayer accepts.
func (s *Store) ExportLayer(ctx context.Context, diffID string, w io.Writer) error {
	dir, err := s.layerDir(diffID)
	if err != nil {
		return err
	}
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	blob, err := os.Open(filepath.Join(dir, blobName))
	if err != nil {
		return fmt.Errorf("layer %s: %w", diffID, err)
	}
	defer blob.Close()
	if _, err := io.CopyBuffer(w, onlyReader{contextReader{ctx, blob}}, make([]byte, 256<<10)); err != nil {
		return fmt.Errorf("send layer %s: %w", diffID, err)
	}
	return nil
}

// ImportLayer adds a layer from an archive, compressed or not, that ends where r ends. It refuses content
// without the given DiffID. If the layer is already here, it does not read r.
func (s *Store) ImportLayer(ctx context.Context, diffID string, r io.Reader) error {
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	return s.addLayer(ctx, diffID, blob{open: func() (io.ReadCloser, error) { return io.NopCloser(r), nil }})
}

// blob is an archive elsewhere.
type blob struct {
	open   func() (io.ReadCloser, error)
	digest string // of its bytes, as they are; empty if unknown
	size   int64  // meaningful if digest is known
	most   int64  // bytes that the uncompressed archive may have; 0: any number
}

// addLayer makes a layer unless it is here, and returns when it is on disk. The store must be held.
func (s *Store) addLayer(ctx context.Context, diffID string, from blob) error {
	done, err := s.making.alone(ctx, diffID)
	if err != nil {
		return err
	}
	defer done()
	return s.make(ctx, diffID, from, publish)
}

// make makes a layer unless it is here. Nobody else may make it meanwhile.
func (s *Store) make(ctx context.Context, diffID string, from blob,
	publish func(unfinished, dir string) error) error {
	dir, err := s.layerDir(diffID)
	if err != nil {
		return err
	}
	if s.HasLayer(diffID) {
		return nil
	}
	if err := files.CheckSpace(s.layersDir(), from.size); err != nil {
		return fmt.Errorf("layer %s: %w", diffID, err)
	}
	unfinished, err := os.MkdirTemp(s.layersDir(), temporary)
	if err == nil {
		err = makeLayer(ctx, unfinished, diffID, from)
	}
	if err == nil {
		err = publish(unfinished, dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("layer %s: %w", diffID, err), files.RemoveTree(unfinished))
	}
	return nil
}

func makeLayer(ctx context.Context, dir, diffID string, from blob) error {
	tree := filepath.Join(dir, treeName)
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(tree, 0o755); err != nil { // whatever the umask
		return err
	}
	archive, err := os.OpenFile(filepath.Join(dir, blobName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer archive.Close()
	raw, err := from.open()
	if err != nil {
		return err
	}
	defer raw.Close()
	size, length, err := unpack(bounded(contextReader{ctx, from.checked(raw)}, from.most), diffID, tree,
		archive, from.most)
	if err != nil {
		return err
	}
	stored, err := archive.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	info, err := json.Marshal(LayerInfo{DiffID: diffID, Size: size, Archive: length, Stored: stored})
	if err != nil {
		return err
	}
	return kernel.WriteFileAtomic(filepath.Join(dir, infoName), append(info, '\n'), 0o600)
}
