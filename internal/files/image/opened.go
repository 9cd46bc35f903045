package image

import (
	"io"
	"slices"
)

// Opener opens the archive of a layer, not compressed, and tells how large it is.
type Opener func(diffID string) (archive io.ReadCloser, bytes int64, err error)

// Opened is the archive of a layer that an engine is to take.
type Opened struct {
	DiffID  string
	Archive io.ReadCloser
	Bytes   int64
	Plain   int64 // as many when it is not compressed; Bytes if that is not known
}

// OpenedLayers are those that an engine lacks of an image.
type OpenedLayers []Opened

// OpenLayers opens each of some layers once.
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

// Bytes of all of them.
func (l OpenedLayers) Bytes() (all int64) {
	for _, one := range l {
		all += one.Bytes
	}
	return all
}

// Unpacked is how much all of them are when they are not compressed, as far as that is known.
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

// FitNames leaves out what no image can be called. Names come from other nodes.
func FitNames(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return CheckName(name) != nil })
}
