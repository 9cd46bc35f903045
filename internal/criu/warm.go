package criu

import (
	"context"
	"fmt"
)

// Warm lets CRIU find out what the kernel can do, and keep the result in /run/criu.kdat. Otherwise the
// first dump after boot does so, which takes 30 to 80 ms of its freeze. Without a tmpfs at /run, CRIU keeps
// nothing, and every dump pays.
func (t Tool) Warm(ctx context.Context) error {
	s, err := startSession(t.Path, sessionFiles{})
	if err != nil {
		return err
	}
	defer s.kill()
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := s.probe(ctx); err != nil {
		return fmt.Errorf("warm %s: %w", t.Path, err)
	}
	return nil
}
