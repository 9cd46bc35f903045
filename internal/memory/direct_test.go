package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// TestReportedInALongRound: a reported page is read again until a round that began after the end of any
// transfer from then, even if the next round comes late. Pages reported at the beginning of a long round
// have been read often enough before those reported at its end.
func TestReportedInALongRound(t *testing.T) {
	size, began := uint64(PageSize()), time.Now()
	page := func(n uint64) []kernel.PageRange {
		return []kernel.PageRange{{Start: n * size,
			End: (n + 1) * size}}
	}
	d := directIO{used: true}
	end := began.Add(10 * directWindow)
	d.begin(began)
	d.note(page(1), began.Add(time.Second))
	d.note(page(4), end)
	for _, c := range []struct {
		after time.Duration
		want  string
	}{
		{directWindow / 4, "[1 4]"},                   // page 1 has not been read since
		{directWindow / 2, "[4]"},                     // a transfer to page 4 may still be under way
		{2 * directWindow, "[4]"},                     // …and now it is over
		{2*directWindow + time.Millisecond, "[]"},     // all are up to date
		{2*directWindow + 2*time.Millisecond, "[]"},   // reports page 2
		{10*directWindow + 2*time.Millisecond, "[2]"}, // a round that came late
		{11 * directWindow, "[]"},
	} {
		d.begin(end.Add(c.after))
		pages := []uint64{}
		must(t, d.again(area{Mapping: kernel.Mapping{Start: 0, End: 8 * size}},
			func(one kernel.PageRange) error {
				for at := one.Start; at < one.End; at += size {
					pages = append(pages, at/size)
				}
				return nil
			}))
		if got := fmt.Sprint(pages); got != c.want {
			t.Errorf("%s after the round the pages %s are read again, want %s", c.after, got, c.want)
		}
		if c.after == 2*directWindow+2*time.Millisecond {
			d.note(page(2), end.Add(c.after))
		}
	}
}

// TestMuchReportedInALongRound: after a round of minutes the next one reads everything again, and later
// ones the pages of the last seconds.
func TestMuchReportedInALongRound(t *testing.T) {
	const seconds = 600
	size, began := uint64(PageSize()), time.Now()
	d := directIO{used: true}
	d.begin(began)
	for i := range uint64(seconds) {
		d.note([]kernel.PageRange{{Start: i * size, End: (i + 1) * size}},
			began.Add(time.Duration(i)*time.Second))
	}
	if n := len(d.recent); n > 12 {
		t.Errorf("%d sets are kept", n)
	}
	end := began.Add(seconds * time.Second)
	for i, most := range []uint64{seconds, 12, 10} {
		d.begin(end.Add(time.Duration(i) * time.Second))
		pages := uint64(0)
		must(t, d.again(area{Mapping: kernel.Mapping{Start: 0, End: seconds * size}},
			func(one kernel.PageRange) error {
				pages += countPages([]kernel.PageRange{one})
				return nil
			}))
		if i == 0 && pages != seconds || pages > most {
			t.Errorf("round %d reads %d pages again, want at most %d", i, pages, most)
		}
	}
}
