package memory

// SetLimit changes how much memory the store takes at most. What it has stays.
func (s *Store) SetLimit(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = bytes
}
