package memory

import (
	"bytes"
	"errors"
	"testing"
)

// TestResidualTakesStore: the pages of a store become a residual copy, memory that processes share included.
func TestResidualTakesStore(t *testing.T) {
	size := uint64(PageSize())
	s, err := NewStore(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, run := range []struct {
		Run
		content byte
	}{
		{Run{Task: 7, Address: slotBytes - 2*size, Pages: 4}, 1},
		{Run{Task: 7, Address: 9 * slotBytes, Pages: 3}, 2},
		{Run{Task: 7, Address: 9*slotBytes + size, Pages: 1, Zero: true}, 0},
		{Run{Task: FirstObject + 5, Address: size, Pages: 2}, 3},
		{Run{Task: 8, Pages: MaxRunPages}, 4},
		{Run{Task: 8, Address: MaxRunPages * size, Pages: MaxRunPages}, 5},
	} {
		var data []byte
		if !run.Zero {
			data = filledWith(int(run.Pages), run.content)
		}
		if err := s.Put(run.Run, data); err != nil {
			t.Fatal(err)
		}
	}
	f := newTestResidual(t, 1<<30)
	if err := f.Take(s); err != nil {
		t.Fatal(err)
	}
	want := []TaskMap{
		{Task: 7, Areas: []Area{{slotBytes - 2*size, 4}, {9 * slotBytes, 1}, {9*slotBytes + 2*size, 1}}},
		{Task: 8, Areas: []Area{{0, 2 * MaxRunPages}}}, {Task: maxTask - 5, Areas: []Area{{size, 2}}},
	}
	if got := f.Contents(1 << 20); !sameMaps(got, want) {
		t.Errorf("it has %+v, want %+v", got, want)
	}
	page := make([]byte, size)
	if has, err := f.ReadPage(7, 9*slotBytes+2*size, page); err != nil || !has ||
		!bytes.Equal(page, filledWith(1, 2)) {
		t.Errorf("a page of it: %v, %v", has, err)
	}
	if err := f.Take(s); !errors.Is(err, errSealed) {
		t.Errorf("a store that is closed: %v", err)
	}
}

// TestResidualTakesPart: pages without room are left out, and the rest is useful.
func TestResidualTakesPart(t *testing.T) {
	size := int64(PageSize())
	s, err := NewStore(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(2) {
		if err := s.Put(Run{Task: 1, Address: 2 * i * slotBytes, Pages: 8}, filledWith(8, 1)); err != nil {
			t.Fatal(err)
		}
	}
	f := newTestResidual(t, 10*size+slotCost)
	if err := f.Take(s); !errors.Is(err, ErrStoreFull) {
		t.Errorf("too much: %v", err)
	}
	if maps := f.Contents(100); !sameMaps(maps, []TaskMap{{Task: 1, Areas: []Area{{0, 8}}}}) {
		t.Errorf("it has %+v", maps)
	}
}
