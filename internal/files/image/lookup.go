package image

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// image reads one image, and returns which of its layers are missing.
func (s *Store) image(id string, names map[string]string) (image Image, missing []string, err error) {
	raw, err := s.Config(id)
	if err != nil {
		return Image{}, nil, err
	}
	if image, err = parseConfig(raw); err != nil {
		return Image{}, nil, err
	}
	for _, diffID := range image.Layers {
		info, err := s.Layer(diffID)
		if err != nil {
			missing = append(missing, diffID)
			continue
		}
		image.Size += info.Size
	}
	for name, named := range names {
		if named == id {
			image.Names = append(image.Names, FamiliarName(name))
		}
	}
	slices.Sort(image.Names)
	return image, missing, nil
}

// List lists every image whose layers are all here, in order of their first names.
func (s *Store) List() ([]Image, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	names, err := s.named.read()
	if err != nil {
		return nil, err
	}
	var images []Image
	for _, id := range ids {
		image, missing, err := s.image(id, names)
		if errors.Is(err, ErrNotFound) {
			continue // removed since
		}
		if err != nil {
			return nil, err
		}
		if len(missing) == 0 {
			images = append(images, image)
		}
	}
	slices.SortFunc(images, func(a, b Image) int {
		return strings.Compare(strings.Join(a.Names, " ")+"\xff"+a.ID, strings.Join(b.Names, " ")+"\xff"+b.ID)
	})
	return images, nil
}

// ids lists all images, also incomplete ones.
func (s *Store) ids() ([]string, error) {
	entries, err := os.ReadDir(s.imagesDir())
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		if id := "sha256:" + entry.Name(); digestPattern.MatchString(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Has reports whether an image and all its layers are here.
func (s *Store) Has(imageID string) bool {
	_, missing, err := s.image(imageID, nil)
	return err == nil && len(missing) == 0
}

// Resolve finds an image by name, ID, or unique prefix of an ID. Error: ErrNotFound.
func (s *Store) Resolve(ref string) (Image, error) {
	names, err := s.named.read()
	if err != nil {
		return Image{}, err
	}
	id, err := s.find(ref, names)
	if err != nil {
		return Image{}, err
	}
	image, missing, err := s.image(id, names)
	if err != nil {
		return Image{}, err
	}
	if len(missing) > 0 {
		return Image{}, fmt.Errorf("%w: of image %q %d layers are missing; load or pull it", ErrNotFound,
			ref, len(missing))
	}
	return image, nil
}

func (s *Store) find(ref string, names map[string]string) (string, error) {
	for _, name := range candidates(ref) {
		if id, ok := names[name]; ok {
			return id, nil
		}
	}
	ids, err := s.ids()
	if err != nil {
		return "", err
	}
	return byPrefix(ref, ids)
}

func byPrefix(ref string, ids []string) (string, error) {
	prefix := "sha256:" + strings.TrimPrefix(ref, "sha256:")
	var found []string
	for _, id := range ids {
		if prefixPattern.MatchString(prefix) && strings.HasPrefix(id, prefix) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: %q; see \"godwit image ls\", or get it by \"godwit image pull\" or "+
			"\"godwit image load\"", ErrNotFound, ref)
	case 1:
		return found[0], nil
	default:
		return "", fmt.Errorf("%w: %q is the beginning of %d IDs; give more of it", ErrNotFound,
			ref, len(found))
	}
}
