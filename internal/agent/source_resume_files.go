package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/wire/stream"
)

// keptLimits bound what a target may tell of files that it has: some dozens of bytes for each of
// them, and for each piece of large ones.
func keptLimits(offer *api.Offer) files.Limits {
	const least, perByte = 1 << 30, 32
	limits := treesLimit(offer)
	limits.Bytes = least + offer.GetTreesBytes()/perByte
	return limits
}

// keptThere reports whether the target has files of an earlier attempt.
func (s *source) keptThere() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reservation.GetKeptFilesBytes() > 0
}

// resumeFiles has the target tell what it has of the files, if it has something. If the step is
// interrupted the connection is ended, and so is this.
func (s *source) resumeFiles() error {
	if !s.keptThere() {
		return nil
	}
	f := s.files
	key := f.trees.Key()
	f.asked.Store(true)
	if err := f.out.Whole(kindResume, "", key[:]); err != nil {
		return err
	}
	if err := f.data.Push(); err != nil {
		return err
	}
	select {
	case err := <-f.resumed:
		return err
	case <-f.applied:
		return errors.New("the target has ended the connection for files")
	}
}

// hearKept takes what the target has. It is called by who reads the connection, which waits for
// nothing else then.
func (f *fileSource) hearKept(ctx context.Context, section stream.Section, limits files.Limits) error {
	if !f.asked.CompareAndSwap(true, false) {
		return errors.New("the target reported which files it has without a request")
	}
	err := f.trees.Resume(ctx, section, limits)
	f.resumed <- err
	return err
}

// makeFilesCold makes what finds changes, for a migration in which all is sent in the freeze. What
// the target has from an earlier attempt is compared before.
func (s *source) makeFilesCold(ctx context.Context) error {
	if !s.keptThere() {
		return s.makeFiles(ctx)
	}
	if err := s.openFiles(ctx); err != nil {
		return fmt.Errorf("open a connection for files to %s: %w", s.target.Name, err)
	}
	_, err := s.files.round(ctx)
	return err
}
