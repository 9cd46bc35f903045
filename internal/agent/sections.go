package agent

import (
	"errors"
	"io"
	"sync"

	"github.com/godwit/godwit/internal/wire/stream"
)

// sections writes the sections of a data connection, one after the other, for whoever has something to send.
type sections struct {
	data *stream.Session
	sent func(bytes int64) // is told of content
	mu   sync.Mutex        // held while a section is written
}

// begin starts a section, when no other is being written. Close must be called: it lets the next one begin.
func (s *sections) begin(kind, name string) (io.WriteCloser, error) {
	s.mu.Lock()
	if err := s.data.Begin(kind, name); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	return &sentSection{s}, nil
}

// whole sends a small section.
func (s *sections) whole(kind, name string, content []byte) error {
	section, err := s.begin(kind, name)
	if err != nil {
		return err
	}
	_, err = section.Write(content)
	return errors.Join(err, section.Close())
}

// sentSection is a section that is being sent.
type sentSection struct{ *sections }

func (s *sentSection) Write(p []byte) (int, error) {
	n, err := s.data.Write(p)
	s.sent(int64(n))
	return n, err
}

func (s *sentSection) Close() error {
	defer s.mu.Unlock()
	return s.data.End()
}
