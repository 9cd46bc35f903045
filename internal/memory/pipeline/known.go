package pipeline

import "github.com/godwit/godwit/internal/memory"

// Known copies to page what the receiver has of a page, with its digest, or returns false if that
// is not kept here: to make deltas of pages that come later, by another way. What it tells holds
// when the receiver has placed all that was put. It is for when nothing is put any more, also after
// Close, and then may be called by several goroutines at once.
func (s *Sender) Known(task memory.Task, address uint64, page []byte) (Digest, bool) {
	id, known := s.table.lookUp(location{task: task, address: address})
	if !known {
		return Digest{}, false
	}
	content := s.cache.get(id) // nil too for what is zero, or is not there (any more)
	if content == nil {
		return Digest{}, false
	}
	copy(page, content)
	return s.table.digest(id), true
}
