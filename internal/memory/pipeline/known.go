package pipeline

import "github.com/godwit/godwit/internal/memory"

// Known copies the receiver's content of a page to page, with its digest, or returns false if the content
// is not kept here. It is for making deltas of pages that come later, in another way. Its result is valid
// when the receiver has placed everything put. Call it when nothing is put any more, possibly after Close;
// then several goroutines may call it at once.
func (s *Sender) Known(task memory.Task, address uint64, page []byte) (Digest, bool) {
	id, known := s.table.lookUp(location{task: task, address: address})
	if !known {
		return Digest{}, false
	}
	content := s.cache.get(id) // also nil for a page that is zero, or is not there (any more)
	if content == nil {
		return Digest{}, false
	}
	copy(page, content)
	return s.table.digest(id), true
}
