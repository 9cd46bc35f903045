package postcopy

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

// FuzzFaults: accepted input encodes to itself.
func FuzzFaults(f *testing.F) {
	f.Add(faultOf(1, 2))
	f.Add(append(faultOf(1<<22, 1<<40), faultOf(3, 0)...))
	f.Fuzz(func(t *testing.T, input []byte) {
		faults, err := decodeFaults(bytes.NewReader(input), make([]byte, maxFaults*faultBytes+1), nil)
		if err != nil {
			if !errors.Is(err, ErrPeer) {
				t.Error(err)
			}
			return
		}
		var again []byte
		for _, w := range faults {
			again = appendFault(again, w)
		}
		if !bytes.Equal(again, input) || len(faults) > maxFaults {
			t.Errorf("%d bytes are %d wants", len(input), len(faults))
		}
	})
}

// FuzzStatus: accepted input can be sent on.
func FuzzStatus(f *testing.F) {
	f.Add(reportOf(memory.Filling))
	f.Add([]byte(`{"state":"lost","error":"` + strings.Repeat("x", 5000) + `","pages":-1}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		report, err := decodeStatus(bytes.NewReader(input))
		if err != nil {
			if !errors.Is(err, ErrPeer) {
				t.Error(err)
			}
			return
		}
		data, err := encodeStatus(report)
		must(t, err)
		if _, err := decodeStatus(bytes.NewReader(data)); err != nil || len(report.Error) > maxReason {
			t.Errorf("%+v: %v", report, err)
		}
	})
}

// FuzzMissing: accepted input is numbered, or refused for its size, and lists the same pages.
func FuzzMissing(f *testing.F) {
	f.Add(encodedMap(flat(50)...))
	f.Add(encodedMap(memory.TaskMap{Task: 2,
		Areas: []memory.Area{{Start: 1 << 30, Pages: 3}, {Start: 1 << 40, Pages: 1}}}, flat(3)[0]))
	f.Fuzz(func(t *testing.T, input []byte) {
		maps, err := decodeMissing(bytes.NewReader(input))
		if err != nil {
			if !errors.Is(err, ErrPeer) {
				t.Error(err)
			}
			return
		}
		pages := uint64(0)
		for _, m := range maps {
			for _, a := range m.Areas {
				pages += min(a.Pages, 1<<20+1)
			}
		}
		if pages > 1<<20 {
			return // such a size is tested elsewhere
		}
		l, err := newLayout(maps)
		must(t, err)
		chosen, err := l.choose(maps)
		must(t, err)
		if n := chosen.count(0, l.pages); n != l.pages || uint64(n) != pages {
			t.Errorf("%d pages of %d and %d", n, l.pages, pages)
		}
		again, _ := l.maps(chosen, 1)
		if !slices.Equal(spots(again), inOrder(spots(maps))) {
			t.Error("other pages")
		}
	})
}

func inOrder(all []spot) []spot {
	slices.SortStableFunc(all, func(a, b spot) int { return int(a.task) - int(b.task) })
	return all
}
