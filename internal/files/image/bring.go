package image

import (
	"context"
	"io"
)

// Claim keeps a layer for the caller to bring, until it is released. Not ok: the layer is here, or somebody else in this
// process brings it, see Await.
func (s *Store) Claim(diffID string) (release func(), ok bool) {
	one := s.use(diffID)
	select {
	case one.token <- struct{}{}:
	default:
		s.leave(diffID)
		return nil, false
	}
	release = func() {
		<-one.token
		s.leave(diffID)
	}
	if s.HasLayer(diffID) {
		release()
		return nil, false
	}
	return release, true
}

// Await waits until nobody else in this process brings a layer, and tells whether it is here.
func (s *Store) Await(ctx context.Context, diffID string) (bool, error) {
	done, err := s.alone(ctx, diffID)
	if err != nil {
		return false, err
	}
	defer done()
	return s.HasLayer(diffID), nil
}

// BringLayer adds a layer that the caller has claimed, from an archive that ends where r ends and has at most so many bytes
// when it is not compressed (0: any number). It is refused if its content does not have the given DiffID. The layer can be used when
// BringLayer returns, and is brought to the disk behind it: whoever must be sure of that syncs the file system. If the machine
// stops before, the layer is gone when the store is opened again.
func (s *Store) BringLayer(ctx context.Context, diffID string, r io.Reader, most int64) error {
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	from := blob{open: func() (io.ReadCloser, error) { return io.NopCloser(r), nil }, most: most}
	return s.make(ctx, diffID, from, s.publishSoon)
}

// making is a layer that somebody makes, or wants to. The token has room for one in it: who makes the layer puts it there.
type making struct {
	token chan struct{}
	users int // the store's mutex guards it
}

// use keeps what is known of a layer until it is left: others may want to make the same.
func (s *Store) use(diffID string) *making {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.making[diffID]
	if !ok {
		one = &making{token: make(chan struct{}, 1)}
		s.making[diffID] = one
	}
	one.users++
	return one
}

// leave forgets a layer that nobody uses: who asks for layers may name any number of them.
func (s *Store) leave(diffID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.making[diffID]
	if one.users--; one.users == 0 {
		delete(s.making, diffID)
	}
}

// alone waits until nobody else in this process makes the layer.
func (s *Store) alone(ctx context.Context, diffID string) (done func(), err error) {
	one := s.use(diffID)
	select {
	case one.token <- struct{}{}:
		return func() {
			<-one.token
			s.leave(diffID)
		}, nil
	case <-ctx.Done():
		s.leave(diffID)
		return nil, context.Cause(ctx)
	}
}
