package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/tarsplit"
)

// Docker keeps a layer in two places, which this package only reads (moby, layer/filestore.go and
// daemon/graphdriver/overlay2):
//
//	image/overlay2/layerdb/sha256/CHAIN/diff               its DiffID
//	image/overlay2/layerdb/sha256/CHAIN/cache-id           where its files are
//	image/overlay2/layerdb/sha256/CHAIN/tar-split.json.gz  its archive's contents except files
//	overlay2/CACHE-ID/diff                                 its files
//
// CHAIN names the layer together with all layers below it, so a layer may be there several times.
const (
	layerDB   = "image/overlay2/layerdb/sha256"
	imageDB   = "image/overlay2/imagedb/content/sha256"
	tarSplit  = "tar-split.json.gz"
	maxSmall  = 1 << 10 // bytes of a file with a digest or a name
	maxConfig = 8 << 20
	// clockTick is longer than the resolution of a file system's timestamps.
	clockTick = time.Second
)

// layerIndex maps layers to directories. It is rebuilt when Docker has more or fewer layers.
type layerIndex struct {
	mu sync.Mutex
	// modification time of the directory when the index was made; zero: the directory may have changed
	// since
	made   time.Time
	chains map[string]string
	sizes  tarsplit.Sizes
}

// chainOf finds a layer in Docker's directory. It returns the name of one of the chains that end with the
// layer.
func (s *imageStore) chainOf(root, diffID string) (string, error) {
	if !diffIDPattern.MatchString(diffID) {
		return "", fmt.Errorf("layer %.80q: %w", diffID, engine.ErrNoLayer)
	}
	dir := filepath.Join(root, layerDB)
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) { // another program keeps the layers
		return "", fmt.Errorf("layer %.80q: %w", diffID, engine.ErrNoLayer)
	}
	if err != nil {
		return "", fmt.Errorf("layers of Docker: %w", err)
	}
	l := &s.index
	l.mu.Lock()
	defer l.mu.Unlock()
	if !info.ModTime().Equal(l.made) {
		if l.chains, err = readChains(dir); err != nil {
			return "", fmt.Errorf("layers of Docker: %w", err)
		}
		l.made = info.ModTime()
		if time.Since(l.made) < clockTick {
			l.made = time.Time{}
		}
	}
	chain := l.chains[diffID]
	if chain == "" {
		return "", fmt.Errorf("layer %s of Docker: %w", diffID, engine.ErrNoLayer)
	}
	return chain, nil
}

// readChains lists the layers that can be sent.
func readChains(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	chains := map[string]string{}
	for _, entry := range entries {
		diffID, err := readSmall(filepath.Join(dir, entry.Name(), "diff"))
		if err == nil && diffIDPattern.MatchString(diffID) { // otherwise the layer has been removed meanwhile
			chains[diffID] = entry.Name()
		}
	}
	return chains, nil
}

func readSmall(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxSmall))
	return strings.TrimSpace(string(content)), err
}

// LayerBytes returns the size of the archive of a layer that is here.
func (s *imageStore) LayerBytes(diffID string) (int64, error) {
	root, err := s.directory()
	if err != nil {
		return 0, err
	}
	chain, err := s.chainOf(root, diffID)
	if c := s.keptElsewhere(err); c != nil {
		return c.images.LayerBytes(diffID)
	}
	if err != nil {
		return 0, err
	}
	bytes, err := s.index.sizes.Of(filepath.Join(root, layerDB, chain, tarSplit))
	if err != nil {
		return 0, fmt.Errorf("layer %s of Docker: %w", diffID, err)
	}
	return bytes, nil
}

// OpenLayer opens the reassembled archive of a layer. It compares each file with what Docker had unpacked:
// reading ends with an error at a file that was changed since.
func (s *imageStore) OpenLayer(diffID string) (io.ReadCloser, error) {
	root, err := s.directory()
	if err != nil {
		return nil, err
	}
	chain, err := s.chainOf(root, diffID)
	if c := s.keptElsewhere(err); c != nil {
		return c.images.OpenLayer(diffID)
	}
	if err != nil {
		return nil, err
	}
	archive, err := openArchive(root, filepath.Join(root, layerDB, chain))
	if err != nil {
		return nil, fmt.Errorf("layer %s of Docker: %w", diffID, err)
	}
	return archive, nil
}

func openArchive(root, dir string) (io.ReadCloser, error) {
	cache, err := readSmall(filepath.Join(dir, "cache-id"))
	if err != nil {
		return nil, err
	}
	if cache == "" || cache != filepath.Base(cache) {
		return nil, fmt.Errorf("its cache ID %.80q is not a valid name", cache)
	}
	return tarsplit.Open(filepath.Join(dir, tarSplit), filepath.Join(root, "overlay2", cache, "diff"))
}

// directory returns the directory of a running Docker's files. Without a running Docker there are no
// layers, because nobody knows what happens to them.
func (s *imageStore) directory() (string, error) {
	if err := s.docker.Away(); err != nil {
		return "", err
	}
	ctx, cancel := asking(context.Background())
	defer cancel()
	return s.docker.directory(ctx)
}
