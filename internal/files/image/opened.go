package image

import (
	"io"
	"slices"
)

// Opener opens the uncompressed archive of a layer, and returns its size.
type Opener func(diffID string) (archive io.ReadCloser, bytes int64, err error)

// Opened is the archive of a layer for an engine.
type Opened struct {
	DiffID  string
	Archive io.ReadCloser
	Bytes   int64
	Plain   int64 // size when uncompressed; Bytes if unknown
}

// OpenedLayers are the layers of an image that an engine lacks.
type OpenedLayers []Opened

// OpenLayers opens each of these layers once.
func OpenLayers(diffIDs []string, open Opener) (OpenedLayers, error) {
	var opened OpenedLayers
	for i, diffID := range diffIDs {
		if slices.Contains(diffIDs[:i], diffID) {
			continue
		}
		archive, bytes, err := open(diffID)
		if err != nil {
			opened.Close()
			return nil, err
		}
		plain := bytes
		if known, is := archive.(interface{ PlainBytes() int64 }); is {
			plain = max(bytes, known.PlainBytes())
		}
		opened = append(opened, Opened{diffID, archive, bytes, plain})
	}
	return opened, nil
}

// Bytes returns the size of all archives.
func (l OpenedLayers) Bytes() (all int64) {
	for _, one := range l {
		all += one.Bytes
	}
	return all
}

// Unpacked returns the uncompressed size of all archives, as far as known.
func (l OpenedLayers) Unpacked() (all int64) {
	for _, one := range l {
		all += one.Plain
	}
	return all
}

// Close closes them.
func (l OpenedLayers) Close() {
	for _, one := range l {
		_ = one.Archive.Close() // it was only read
	}
}

// FitNames removes names that no image can have. Names come from other nodes.
func FitNames(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return CheckName(name) != nil })
}
