package image

import (
	"cmp"
	"os"
	"slices"
	"strings"
)

const (
	// maxSimilar bounds how many layers are read for one missing layer.
	maxSimilar = 3
	// alike is the share by which the sizes of two layers may differ if nothing else suggests a comparison.
	alike = 0.02
)

// Similar names layers that are here and may have much in common with a missing layer of an image, the
// likeliest first. They are those that the missing layer probably replaces, guessed from other images with
// the same name, or with the same lowest layer, or else by size alone. The image's configuration must be
// here; names are its names elsewhere.
func (s *Store) Similar(imageID string, names []string, diffID string, archive int64) []string {
	config, err := s.Config(imageID)
	if err != nil {
		return nil
	}
	wanted, err := parseConfig(config)
	if err != nil {
		return nil
	}
	wanted.Names = names
	found := SimilarLayers(wanted, s.all(), diffID, s.HasLayer)
	if len(found) == 0 {
		found = atMost(maxSimilar, s.ofSize(wanted, archive))
	}
	return found
}

// SimilarLayers names layers of images that are here and may have much in common with a missing layer of an
// image, the likeliest first.
func SimilarLayers(wanted Image, images []Image, diffID string, here func(diffID string) bool) []string {
	var found []string
	for _, other := range related(wanted, images) {
		found = append(found, replaced(wanted, other, diffID, here)...)
	}
	return atMost(maxSimilar, found)
}

// atMost returns the first few, each once.
func atMost(most int, found []string) (first []string) {
	for _, layer := range found {
		if len(first) < most && !slices.Contains(first, layer) {
			first = append(first, layer)
		}
	}
	return first
}

// all returns all images, including incomplete ones.
func (s *Store) all() (images []Image) {
	ids, err := s.ids()
	if err != nil {
		return nil
	}
	stored, err := s.named.read()
	if err != nil {
		return nil
	}
	for _, id := range ids {
		if one, _, err := s.image(id, stored); err == nil {
			images = append(images, one)
		}
	}
	return images
}

// related lists images that may be other versions of one, those of the same name first.
func related(wanted Image, images []Image) []Image {
	repositories := map[string]bool{}
	for _, name := range wanted.Names {
		repositories[repository(name)] = true
	}
	var same, upon []Image
	for _, other := range images {
		if other.ID == wanted.ID || len(other.Layers) == 0 {
			continue
		}
		switch {
		case slices.ContainsFunc(other.Names,
			func(name string) bool { return repositories[repository(name)] }):
			same = append(same, other)
		case other.Layers[0] == wanted.Layers[0]:
			upon = append(upon, other)
		}
	}
	for _, list := range [][]Image{same, upon} {
		slices.SortFunc(list, func(a, b Image) int { return b.Created.Compare(a.Created) })
	}
	return append(same, upon...)
}

// repository returns a name without its tag.
func repository(name string) string {
	canonical, err := canonicalName(name)
	if err != nil {
		return name
	}
	canonical, _, _ = strings.Cut(canonical, "@")
	if i := strings.LastIndexByte(canonical, ':'); i > strings.LastIndexByte(canonical, '/') {
		canonical = canonical[:i]
	}
	return canonical
}

// replaced returns the layers of another version that the wanted one lacks, those at about the same
// position first.
func replaced(wanted, other Image, diffID string, here func(string) bool) []string {
	at := slices.Index(wanted.Layers, diffID)
	distance := func(layer string) int {
		return max(at-slices.Index(other.Layers, layer), slices.Index(other.Layers, layer)-at)
	}
	layers := slices.DeleteFunc(slices.Clone(other.Layers), func(layer string) bool {
		return slices.Contains(wanted.Layers, layer) || !here(layer)
	})
	slices.SortStableFunc(layers, func(a, b string) int { return cmp.Compare(distance(a), distance(b)) })
	return layers
}

// ofSize returns layers of about the same size as a wanted one.
func (s *Store) ofSize(wanted Image, archive int64) []string {
	entries, err := os.ReadDir(s.layersDir())
	if err != nil {
		return nil
	}
	var layers []string
	for _, entry := range entries {
		info, err := s.Layer("sha256:" + entry.Name())
		if err != nil || slices.Contains(wanted.Layers, info.DiffID) {
			continue
		}
		if differ := float64(max(info.Archive-archive, archive-info.Archive)); differ <= alike*float64(
			archive) {
			layers = append(layers, info.DiffID)
		}
	}
	return layers
}
