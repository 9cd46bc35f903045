package memory

import (
	"bytes"
	"errors"
	"os"
	"testing"
)

func newTestResidual(t *testing.T, limit int64) *Residual {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	f := NewResidual(file, limit)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestResidual(t *testing.T) {
	size := uint64(PageSize())
	f := newTestResidual(t, 1<<30)
	for _, run := range []struct {
		Run
		content byte
	}{
		{Run{Task: 7, Address: slotBytes - 2*size, Pages: 4}, 1},
		{Run{Task: 7, Address: 9 * slotBytes, Pages: 1}, 2},
		{Run{Task: 3, Pages: 5, Zero: true}, 0}, {Run{Task: FirstObject + 5, Address: size, Pages: 2}, 3},
		{Run{Task: FirstObject + 5, Address: descriptionAddress, Pages: 1}, 4},
	} {
		var data []byte
		if !run.Zero {
			data = filledWith(int(run.Pages), run.content)
		}
		if err := f.Put(run.Run, data); err != nil {
			t.Fatal(err)
		}
	}
	want := []TaskMap{
		{Task: 7, Areas: []Area{{slotBytes - 2*size, 4}, {9 * slotBytes, 1}}},
		{Task: maxTask - 5, Areas: []Area{{size, 2}}},
	}
	got := f.Contents(1 << 20)
	if !sameMaps(got, want) {
		t.Errorf("it has %+v, want %+v", got, want)
	}
	if got := f.Contents(3); len(got) == 0 ||
		!sameMaps(got[:1], []TaskMap{{Task: 7, Areas: []Area{{slotBytes - 2*size, 3}}}}) {
		t.Errorf("at most three pages are %+v", got)
	}
	page := make([]byte, size)
	for _, m := range want {
		for _, area := range m.Areas {
			if has, err := f.ReadPage(m.Task, area.Start, page); err != nil || !has ||
				bytes.Equal(page, make([]byte, size)) {
				t.Errorf("page at %#x of %d: %v, %v", area.Start, m.Task, has, err)
			}
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if has, err := f.ReadPage(7, 9*slotBytes, page); has || err != nil {
		t.Errorf("after its end: %v, %v", has, err)
	}
}

// TestResidualFull: existing pages stay when there is no more room.
func TestResidualFull(t *testing.T) {
	size := int64(PageSize())
	f := newTestResidual(t, 10*size+slotCost)
	if err := f.Put(Run{Task: 1, Pages: 8}, filledWith(8, 1)); err != nil {
		t.Fatal(err)
	}
	if err := f.Put(Run{Task: 1, Address: uint64(8 * size), Pages: 8}, filledWith(8, 1)); !errors.Is(err,
		ErrStoreFull) {
		t.Errorf("too much: %v", err)
	}
	if maps := f.Contents(100); !sameMaps(maps, []TaskMap{{Task: 1, Areas: []Area{{0, 8}}}}) ||
		f.Bytes() > 10*size+slotCost {
		t.Errorf("it has %+v, %d bytes", maps, f.Bytes())
	}
}

func sameMaps(a, b []TaskMap) bool {
	var x, y bytes.Buffer
	return EncodeMap(&x, a) == nil && EncodeMap(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}
