package memory

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/kernel"
)

// Left is memory that the program that saves the rest of the processes has left to a Source.
type Left struct {
	Listed []TaskMap // pages with content
	Unseen []TaskMap // addresses that were not examined, with content or without
}

// Complete sends those of the listed pages that were never sent: pages that the other program has found and
// the source has not. It also makes sure that the source has scanned everything that nobody else has
// examined. The processes are frozen.
func (s *Source) Complete(ctx context.Context, sink Sink, left Left) (RoundStats, error) {
	if err := s.tasks.covers(left.Unseen); err != nil {
		return RoundStats{Number: s.rounds, Final: true}, err
	}
	return s.send(ctx, sink, left.Listed, true,
		func(t *task, a Area, found func(kernel.PageRange) error) error {
			return t.sent.In(a.Start, a.Start+a.Pages*uint64(PageSize()), false, found)
		})
}

// covers makes sure that a final round has scanned memory for pages with content: then pages that Map does
// not list have none.
func (s *tasks) covers(unseen []TaskMap) error {
	byID := s.byID()
	for _, m := range unseen {
		t := byID[m.Task]
		if t == nil {
			return fmt.Errorf("complete the memory: there is no process %d, whose memory was partly "+
				"left to the source", m.Task)
		}
		for _, a := range m.Areas {
			if !covers(t.heldAreas, a) {
				return t.describe(fmt.Errorf("%d pages at %#x were left to the source, which does not "+
					"carry them", a.Pages, a.Start))
			}
		}
	}
	return nil
}

// covers reports whether mappings, which are in order, contain all pages of an area.
func covers(areas []area, one Area) bool {
	start, end := one.Start, one.Start+one.Pages*uint64(PageSize())
	for _, m := range areas {
		if m.Start <= start && start < m.End {
			start = m.End
		}
		if start >= end {
			return true
		}
	}
	return false
}
