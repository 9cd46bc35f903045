package podman

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/godwit/godwit/internal/engine"
	imagestore "github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/files/tarsplit"
)

// Podman keeps layers in containers/storage, whose files are only read here (layers.go there, and
// drivers/overlay). It replaces those with lists whole.
//
//	overlay-layers/layers.json         what there is: layers of images, and of containers, which have no DiffID
//	overlay-layers/ID.tar-split.gz     what a layer's archive had beside its files
//	overlay/ID/diff                    its files
//
// An ID names a layer together with all below it, so a layer may be there several times.
const (
	layersDir = "overlay-layers"
	tarSplit  = ".tar-split.gz"
)

// layerList is the list of layers that outlive a reboot. Images have no others.
const layerList = "layers.json"

// maxStacked is what an overlay mount can take (OVL_MAX_STACK).
const maxStacked = 500

// storedLayer is what the storage tells of a layer.
type storedLayer struct {
	ID     string         `json:"id"`
	Parent string         `json:"parent"`
	DiffID string         `json:"diff-digest"`
	Flags  map[string]any `json:"flags"`
}

// incomplete is set while a layer comes, and stays if that did not end.
func (l storedLayer) incomplete() bool { is, _ := l.Flags["incomplete"].(bool); return is }

// layerTable are the layers of a storage that are whole.
type layerTable struct {
	byID     map[string]storedLayer
	byDiffID map[string][]string // IDs
}

// layerIndex is a table of layers, which is made anew when the storage has other ones.
type layerIndex struct {
	sizes tarsplit.Sizes

	mu    sync.Mutex
	made  os.FileInfo // of the list that it was made from
	table layerTable
}

// read is what there is now.
func (l *layerIndex) read(root string) (layerTable, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	path := filepath.Join(root, layersDir, layerList)
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) { // it has none yet
		return layerTable{}, nil
	}
	if err != nil {
		return layerTable{}, err
	}
	if l.made != nil && os.SameFile(info, l.made) && info.ModTime().Equal(l.made.ModTime()) &&
		info.Size() == l.made.Size() {
		return l.table, nil
	}
	table, err := readLayers(path)
	if err != nil {
		return layerTable{}, fmt.Errorf("read which layers Podman has: %w", err)
	}
	l.made, l.table = info, table
	return table, nil
}

func readLayers(path string) (layerTable, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return layerTable{}, err
	}
	var all []storedLayer
	if err := json.Unmarshal(data, &all); err != nil {
		return layerTable{}, err
	}
	table := layerTable{map[string]storedLayer{}, map[string][]string{}}
	for _, one := range all {
		if one.incomplete() || !idPattern.MatchString(one.ID) {
			continue
		}
		table.byID[one.ID] = one
		if imagestore.CheckDigest(one.DiffID) == nil {
			table.byDiffID[one.DiffID] = append(table.byDiffID[one.DiffID], one.ID)
		}
	}
	return table, nil
}

// below are the DiffIDs of a layer and of what it lies on, lowest first; nil if the storage does
// not tell them all.
func (t layerTable) below(id string) (diffIDs []string) {
	for id != "" {
		layer, known := t.byID[id]
		if !known || layer.DiffID == "" || len(diffIDs) == maxStacked {
			return nil
		}
		diffIDs, id = append(diffIDs, layer.DiffID), layer.Parent
	}
	slices.Reverse(diffIDs)
	return diffIDs
}

// stacked counts the layers, from the lowest on, that are upon each other.
func (t layerTable) stacked(diffIDs []string) int {
	parents := []string{""}
	for i, diffID := range diffIDs {
		var upon []string
		for _, id := range t.byDiffID[diffID] {
			if slices.Contains(parents, t.byID[id].Parent) {
				upon = append(upon, id)
			}
		}
		if len(upon) == 0 {
			return i
		}
		parents = upon
	}
	return len(diffIDs)
}

// kept finds a layer of which there is what its archive is put together of.
func (s *imageStore) kept(diffID string) (id, split string, err error) {
	if err := s.podman.Away(); err != nil {
		return "", "", err
	}
	table, err := s.index.read(s.podman.root)
	if err != nil {
		return "", "", err
	}
	for _, id := range table.byDiffID[diffID] {
		split := filepath.Join(s.podman.root, layersDir, id+tarSplit)
		if _, err := os.Stat(split); err == nil {
			return id, split, nil
		}
	}
	return "", "", fmt.Errorf("layer %.80q of Podman: %w", diffID, engine.ErrNoLayer)
}

// LayerBytes is how large the archive of a layer is that is here.
func (s *imageStore) LayerBytes(diffID string) (int64, error) {
	_, split, err := s.kept(diffID)
	if err != nil {
		return 0, err
	}
	bytes, err := s.index.sizes.Of(split)
	if err != nil {
		return 0, fmt.Errorf("layer %s of Podman: %w", diffID, err)
	}
	return bytes, nil
}

// OpenLayer opens the archive of a layer, put together again. A file that was changed since Podman
// has unpacked it ends the reading with an error.
func (s *imageStore) OpenLayer(diffID string) (io.ReadCloser, error) {
	id, split, err := s.kept(diffID)
	if err != nil {
		return nil, err
	}
	archive, err := tarsplit.Open(split, filepath.Join(s.podman.root, "overlay", id, "diff"))
	if err != nil {
		return nil, fmt.Errorf("layer %s of Podman: %w", diffID, err)
	}
	return archive, nil
}
