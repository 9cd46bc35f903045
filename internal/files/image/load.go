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
	from, err := s.openSource(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	defer from.Close()
	return s.loadFrom(ctx, from, progress)
}

// LoadStream adds the images in an archive that is read to its end first.
func (s *Store) LoadStream(ctx context.Context, r io.Reader, progress Progress) ([]Image, error) {
	file, err := s.spool(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	from, err := openTarball(file)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	defer from.Close()
	return s.loadFrom(ctx, from, progress)
}

// openSource opens a directory, an archive in place, or the contents of a compressed archive.
func (s *Store) openSource(ctx context.Context, path string) (source, error) {
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
	plain, err := s.spool(ctx, file)
	if err != nil {
		return nil, err
	}
	return openTarball(plain)
}

// loadFrom adds all images of a source.
func (s *Store) loadFrom(ctx context.Context, from source, progress Progress) ([]Image, error) {
	release, err := s.Hold()
	if err != nil {
		return nil, err
	}
	defer release()
	images, err := list(from)
	if err != nil {
		return nil, fmt.Errorf("load image: %w", err)
	}
	loaded, err := s.addAll(ctx, images, progress)
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
func (s *Store) addAll(ctx context.Context, images []found, progress Progress) ([]Image, error) {
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
			if err := s.addShown(ctx, diffID, image.blobs[j], fmt.Sprintf("%d of %d", j+1, len(image.blobs)),
				progress); err != nil {
				return nil, err
			}
		}
	}
	return s.record(images, parsed)
}

func (s *Store) addShown(ctx context.Context, diffID string, from blob, which string,
	progress Progress) error {
	if s.HasLayer(diffID) {
		progress.say("layer %s (%s): already here", short(diffID), which)
		return nil
	}
	progress.say("layer %s (%s): unpacking", short(diffID), which)
	return s.addLayer(ctx, diffID, from)
}

// record makes images visible whose layers are all here.
func (s *Store) record(images []found, parsed []Image) ([]Image, error) {
	for i, image := range images {
		if err := s.addConfig(parsed[i].ID, image.config); err != nil {
			return nil, err
		}
	}
	err := s.changeNames(func(names map[string]string) {
		for i, image := range images {
			for _, name := range image.names {
				names[name] = parsed[i].ID
			}
		}
	})
	if err != nil {
		return nil, err
	}
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	for i := range parsed {
		if parsed[i], _, err = s.image(parsed[i].ID, names); err != nil {
			return nil, err
		}
	}
	return parsed, nil
}

func short(digest string) string { return digest[len("sha256:"):][:12] }
