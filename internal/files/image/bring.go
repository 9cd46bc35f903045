package image

import (
	"context"
	"io"
)

// Claim reserves a layer for the caller to bring, until it is released. Not ok: the layer is here, or
// another goroutine in this process brings it, see Await.
func (s *Store) Claim(diffID string) (release func(), ok bool) {
	return s.making.claim(diffID, s.HasLayer)
}

// Await waits until nobody else in this process brings a layer, and reports whether it is here.
func (s *Store) Await(ctx context.Context, diffID string) (bool, error) {
	done, err := s.making.alone(ctx, diffID)
	if err != nil {
		return false, err
	}
	defer done()
	return s.HasLayer(diffID), nil
}

// BringLayer adds a layer that the caller has claimed, from an archive that ends where r ends and has at
// most this many bytes when it is not compressed (0: any number). It refuses content without the given
// DiffID. The layer can be used when BringLayer returns, and is written to disk in the background; callers
// that need that sync the file system. If the machine stops before, the layer is gone when the store is
// opened again.
func (s *Store) BringLayer(ctx context.Context, diffID string, r io.Reader, most int64) error {
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	from := blob{open: func() (io.ReadCloser, error) { return io.NopCloser(r), nil }, most: most}
	return s.make(ctx, diffID, from, s.unsynced.publish)
}
