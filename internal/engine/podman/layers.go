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

// Podman keeps layers in containers/storage, whose files this package only reads (layers.go there, and
// drivers/overlay). Podman always replaces its lists as a whole.
//
//	overlay-layers/layers.json         all layers: layers of images, and of containers, which have no DiffID
//	overlay-layers/ID.tar-split.gz     the contents of a layer's archive except files
//	overlay/ID/diff                    its files
//
// An ID names a layer together with all layers below it, so a layer may be there several times.
const (
	layersDir = "overlay-layers"
	tarSplit  = ".tar-split.gz"
)

// layerList is the list of layers that survive a reboot. Images have no others.
const layerList = "layers.json"

// maxStacked is the number of layers that an overlay mount can have (OVL_MAX_STACK).
const maxStacked = 500

// storedLayer is the storage's record of a layer.
type storedLayer struct {
	ID     string         `json:"id"`
	Parent string         `json:"parent"`
	DiffID string         `json:"diff-digest"`
	Flags  map[string]any `json:"flags"`
}

// incomplete reports the flag that is set while a layer comes, and stays if that was interrupted.
func (l storedLayer) incomplete() bool { is, _ := l.Flags["incomplete"].(bool); return is }

// layerTable has the complete layers of a storage.
type layerTable struct {
	byID     map[string]storedLayer
	byDiffID map[string][]string // IDs
}

// layerIndex is a table of layers, which is rebuilt when the storage has changed.
type layerIndex struct {
	sizes tarsplit.Sizes

	mu    sync.Mutex
	made  os.FileInfo // the list from which the table was made
	table layerTable
}

// read returns the current table.
func (l *layerIndex) read(root string) (layerTable, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	path := filepath.Join(root, layersDir, layerList)
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) { // there is no list yet
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

// below returns the DiffIDs of a layer and of the layers below it, lowest first; nil if the storage does
// not have all of them.
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

// stacked counts the layers, from the lowest, that are on top of each other.
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

// kept finds a layer for which the storage still has the parts of its archive.
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

// LayerBytes returns the size of the archive of a layer that is here.
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

// OpenLayer opens the reassembled archive of a layer. Reading ends with an error at a file that was changed
// since Podman has unpacked it.
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
