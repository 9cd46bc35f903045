package image

import (
	"context"
	"io"
)

// Claim keeps a layer for the caller to bring, until it is released. Not ok: the layer is here, or
// somebody else in this process brings it, see Await.
func (s *Store) Claim(diffID string) (release func(), ok bool) {
	return s.making.claim(diffID, s.HasLayer)
}

// Await waits until nobody else in this process brings a layer, and tells whether it is here.
func (s *Store) Await(ctx context.Context, diffID string) (bool, error) {
	done, err := s.making.alone(ctx, diffID)
	if err != nil {
		return false, err
	}
	defer done()
	return s.HasLayer(diffID), nil
}

// BringLayer adds a layer that the caller has claimed, from an archive that ends where r ends and
// has at most so many bytes when it is not compressed (0: any number). It is refused if its content
// does not have the given DiffID. The layer can be used when BringLayer returns, and is brought to
// the disk behind it: whoever must be sure of that syncs the file system. If the machine stops
// before, the layer is gone when the store is opened again.
func (s *Store) BringLayer(ctx context.Context, diffID string, r io.Reader, most int64) error {
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	from := blob{open: func() (io.ReadCloser, error) { return io.NopCloser(r), nil }, most: most}
	return s.make(ctx, diffID, from, s.publishSoon)
}
