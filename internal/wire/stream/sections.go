package stream

import (
	"errors"
	"io"
	"sync"
)

// Sections writes the sections of a session, one after the other, for several callers.
type Sections struct {
	data *Session
	sent func(bytes int64) // called with the size of content; nil: nobody
	mu   sync.Mutex        // held while a section is written
}

// NewSections writes sections of a session. sent is called with the size of their content, unless it is
// nil.
func NewSections(data *Session, sent func(bytes int64)) *Sections {
	return &Sections{data: data, sent: sent}
}

// Begin starts a section, when no other is being written. Close must be called: it lets the next one begin.
func (s *Sections) Begin(kind, name string) (io.WriteCloser, error) {
	s.mu.Lock()
	if err := s.data.Begin(kind, name); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	return &sentSection{s}, nil
}

// Whole sends a small section.
func (s *Sections) Whole(kind, name string, content []byte) error {
	section, err := s.Begin(kind, name)
	if err != nil {
		return err
	}
	_, err = section.Write(content)
	return errors.Join(err, section.Close())
}

// Uncounted sends a small section without a name, which sent is not told of.
func (s *Sections) Uncounted(kind string, content []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.data.Begin(kind, ""); err != nil {
		return err
	}
	if _, err := s.data.Write(content); err != nil {
		return err
	}
	return s.data.End()
}

// Push sends what was written, when no section is being written. See Session.Push.
func (s *Sections) Push() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.Push()
}

// Flush is Session.Flush, for callers that know that no section is being written.
func (s *Sections) Flush() error { return s.data.Flush() }

// sentSection is a section that is being sent.
type sentSection struct{ *Sections }

func (s *sentSection) Write(p []byte) (int, error) {
	n, err := s.data.Write(p)
	if s.sent != nil {
		s.sent(int64(n))
	}
	return n, err
}

func (s *sentSection) Close() error {
	defer s.mu.Unlock()
	return s.data.End()
}
