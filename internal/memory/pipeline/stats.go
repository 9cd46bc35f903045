package pipeline

// Stats counts pages by what happened to them.
type Stats struct {
	Pages          uint64 // that were put
	UnchangedPages uint64 // of them, those that the receiver already had there
	ZeroPages      uint64
	ReferencePages uint64 // with content that the receiver had elsewhere, of which…
	BasePages      uint64 // …from before the migration
	DeltaPages     uint64
	ContentPages   uint64
	FrameBytes     uint64 // all frames, before compression
}

// Minus returns the counts since other.
func (s Stats) Minus(other Stats) Stats {
	s.Pages -= other.Pages
	s.UnchangedPages -= other.UnchangedPages
	s.ZeroPages -= other.ZeroPages
	s.ReferencePages -= other.ReferencePages
	s.BasePages -= other.BasePages
	s.DeltaPages -= other.DeltaPages
	s.ContentPages -= other.ContentPages
	s.FrameBytes -= other.FrameBytes
	return s
}
