package push

import (
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// reportOf is the part of a report on a container's memory about remote pages.
func reportOf(fill memory.FillReport) migration.Push {
	return migration.Push{
		RemotePages: fill.RemotePages, LeftPages: fill.RemoteLeft, LostPages: fill.LostPages,
		Faults:             fill.FetchedPages,
		FaultMedianSeconds: fill.FetchMedianSeconds, FaultP99Seconds: fill.FetchP99Seconds,
		FaultMaximumSeconds: fill.FetchMaximumSeconds, WaitedSeconds: fill.WaitedSeconds,
	}
}

// Unfinished reports whether a container still needs pages that are at its source.
func Unfinished(fill memory.FillReport) bool {
	return fill.State == memory.Filling && fill.RemoteLeft > 0
}

// Count is how many pages maps have.
func Count(maps []memory.TaskMap) (pages int64) {
	for _, m := range maps {
		for _, area := range m.Areas {
			pages += int64(area.Pages)
		}
	}
	return pages
}
