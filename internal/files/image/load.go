package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Progress is called with a description of the present work. It may be nil.
type Progress func(text string)

func (p Progress) say(format string, args ...any) {
	if p != nil {
		p(fmt.Sprintf(format, args...))
	}
}

// found is an image elsewhere: its description, and where its layers are.
type found struct {
	config []byte
	names  []string // canonical
	blobs  []blob   // lowest first, one for each layer
}

// Load adds the images in a file or directory: the output of docker save, or an OCI image layout, as a
// directory or as a tar; either archive may be compressed as a whole. If a layout has images of several
// platforms, Load takes the one for this node. It checks all images, and stores their layers, before the
// first becomes visible.
func (s *Store) Load(ctx context.Context, path string, progress Progress) ([]Image, error) {
	from, err := openSource(ctx, s.imagesDir(), path)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	defer from.Close()
	return loader{s, progress}.load(ctx, from)
}

// LoadStream adds the images in an archive that is read to its end first.
func (s *Store) LoadStream(ctx context.Context, r io.Reader, progress Progress) ([]Image, error) {
	file, err := spool(ctx, s.imagesDir(), r)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	from, err := openTarball(file)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	defer from.Close()
	return loader{s, progress}.load(ctx, from)
}

// openSource opens a directory, an archive in place, or the contents of a compressed archive, which are
// spooled.
func openSource(ctx context.Context, spools, path string) (source, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if info.IsDir() {
		root, err := os.OpenRoot(path)
		return directory{root}, errors.Join(err, file.Close())
	}
	if info.Mode().IsRegular() && !compressed(file) {
		return openTarball(file)
	}
	defer file.Close()
	plain, err := spool(ctx, spools, file)
	if err != nil {
		return nil, err
	}
	return openTarball(plain)
}

// loader adds images to a store.
type loader struct {
	store    *Store
	progress Progress
}

// load adds all images of a source.
func (l loader) load(ctx context.Context, from source) ([]Image, error) {
	release, err := l.store.Hold()
	if err != nil {
		return nil, err
	}
	defer release()
	images, err := list(from)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	loaded, err := l.addAll(ctx, images)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	return loaded, nil
}

// list detects the kind of an archive, and lists its images. Docker 25 and later write both kinds into one
// archive; Docker's own has the names.
func list(from source) ([]found, error) {
	switch {
	case has(from, "manifest.json"):
		return dockerImages(from)
	case has(from, "index.json"):
		return layoutImages(from)
	}
	return nil, fmt.Errorf("%w: there is neither a manifest.json (docker save) nor an index.json (OCI "+
		"image layout) in it", ErrInvalid)
}

func has(from source, name string) bool {
	file, _, err := from.open(name)
	if err == nil {
		_ = file.Close()
	}
	return !errors.Is(err, fs.ErrNotExist)
}

// addAll adds the layers of all images, then the images, then their names.
func (l loader) addAll(ctx context.Context, images []found) ([]Image, error) {
	parsed := make([]Image, len(images))
	for i, image := range images {
		var err error
		if parsed[i], err = parseConfig(image.config); err != nil {
			return nil, err
		}
		if got, want := len(image.blobs), len(parsed[i].Layers); got != want {
			return nil, fmt.Errorf("%w: its manifest lists %d layers, its configuration %d", ErrInvalid,
				got, want)
		}
	}
	for i, image := range images {
		for j, diffID := range parsed[i].Layers {
			which := fmt.Sprintf("%d of %d", j+1, len(image.blobs))
			if err := l.addShown(ctx, diffID, image.blobs[j], which); err != nil {
				return nil, err
			}
		}
	}
	return l.record(images, parsed)
}

func (l loader) addShown(ctx context.Context, diffID string, from blob, which string) error {
	if l.store.HasLayer(diffID) {
		l.progress.say("layer %s (%s): already here", short(diffID), which)
		return nil
	}
	l.progress.say("layer %s (%s): unpacking", short(diffID), which)
	return l.store.addLayer(ctx, diffID, from)
}

// record makes images visible whose layers are all here.
func (l loader) record(images []found, parsed []Image) ([]Image, error) {
	for i, image := range images {
		if err := l.store.addConfig(parsed[i].ID, image.config); err != nil {
			return nil, err
		}
	}
	err := l.store.named.change(func(names map[string]string) {
		for i, image := range images {
			for _, name := range image.names {
				names[name] = parsed[i].ID
			}
		}
	})
	if err != nil {
		return nil, err
	}
	names, err := l.store.named.read()
	if err != nil {
		return nil, err
	}
	for i := range parsed {
		if parsed[i], _, err = l.store.image(parsed[i].ID, names); err != nil {
			return nil, err
		}
	}
	return parsed, nil
}

func short(digest string) string { return digest[len("sha256:"):][:12] }
