package memory

import (
	"testing"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// A transfer may have begun at the end of a round that took longer than any transfer does.
func TestReportedInALongRound(t *testing.T) {
	size, began := uint64(PageSize()), time.Now()
	d := directIO{used: true}
	end := began.Add(10 * directWindow)
	d.begin(began)
	d.note([]kernel.PageRange{{Start: size, End: 2 * size}}, began.Add(time.Second))
	d.note([]kernel.PageRange{{Start: 4 * size, End: 5 * size}}, end)
	again := func(at time.Time) (pages uint64) {
		d.begin(at)
		must(t, d.again(area{Mapping: kernel.Mapping{Start: 0, End: 8 * size}}, func(one kernel.PageRange) error {
			pages += countPages([]kernel.PageRange{one})
			return nil
		}))
		return pages
	}
	if pages := again(end.Add(directWindow / 2)); pages != 2 {
		t.Errorf("right after it %d pages are read again, want 2", pages)
	}
	if pages := again(end.Add(2 * directWindow)); pages != 0 {
		t.Errorf("long after it %d pages are read again, want 0", pages)
	}
}
