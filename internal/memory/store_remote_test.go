package memory

import (
	"bytes"
	"errors"
	"testing"
)

// TestStoreRemote marks pages as remote, some of which the store already has, and checks the store's
// answers and the image.
func TestStoreRemote(t *testing.T) {
	size := uint64(PageSize())
	s := newTestStore(t, 1<<30)
	must(t, s.Put(Run{Task: 1, Address: 0, Pages: 10}, filledWith(10, 1)))
	must(t, s.Put(Run{Task: 1, Address: 10 * size, Pages: 10, Zero: true}, nil))
	before := s.Bytes()
	remote := []TaskMap{
		{Task: 1, Areas: []Area{{Start: 5 * size, Pages: 10}, {Start: slotBytes - 2*size, Pages: 4}}},
		{Task: 2, Areas: []Area{{Start: 7 * slotBytes, Pages: 1}}},
	}
	for range 2 { // the second time changes nothing
		must(t, s.Remote(remote))
		if want := before + int64((10-5+4+1)*size) + 2*slotCost; s.Bytes() != want {
			t.Errorf("%d bytes are counted, want %d", s.Bytes(), want)
		}
	}
	if has, err := s.ReadPage(1, 5*size, make([]byte, size)); has || err != nil {
		t.Errorf("a remote page is there: %v", err)
	}
	// Pages that are put later are no longer remote.
	must(t, s.Put(Run{Task: 1, Address: 6 * size, Pages: 1}, filledWith(1, 6)))
	must(t, s.Put(Run{Task: 1, Address: 7 * size, Pages: 1, Zero: true}, nil))
	if stats := s.Stats(); stats.RemotePages != 13 || stats.Pages != 6 {
		t.Errorf("%+v", stats)
	}
	all := []TaskMap{{Task: 1, Areas: []Area{{Start: 0, Pages: 14}, {Start: slotBytes - 2*size, Pages: 3}}},
		remote[1]}
	must(t, s.Check(all))
	if err := s.Check([]TaskMap{{Task: 2, Areas: []Area{{Start: 7 * slotBytes, Pages: 2}}}}); !errors.Is(err,
		ErrPagesMissing) {
		t.Errorf("Check of a page that is not remote: %v", err)
	}
	must(t, s.Keep(all))
	image, err := s.Seal()
	must(t, err)
	defer image.Close()
	hasBefore(t, s)
	slots, err := image.ReadIndex()
	must(t, err)
	if len(slots) != 3 {
		t.Fatalf("%d slots", len(slots))
	}
	for i, want := range [][2]int{{6, 9}, {0, 1}, {0, 1}} {
		if n := slots[i].RemotePages(); n != want[1] || slots[i].Pages()-n != want[0] {
			t.Errorf("slot %d: %d pages, %d of them late, want %v", i, slots[i].Pages(), n, want)
		}
	}
	// The last of task 1's first slot and the first of its second: page 15 of those listed was
	// dropped by Keep.
	m := mask(slots[0].Remote)
	if !m.has(5) || m.has(6) || m.has(7) || !m.has(13) || m.has(14) || !m.has(511) {
		t.Errorf("remote pages: %x", m)
	}
}

// hasBefore checks the earlier content of remote pages: page 5 and those from 8 on, except that page 10 on
// were zero.
func hasBefore(t *testing.T, s *Store) {
	t.Helper()
	size := uint64(PageSize())
	before := s.Before()
	if before == nil || s.Before() != nil {
		t.Fatal("what there was of remote pages is not given, or twice")
	}
	page := make([]byte, size)
	for number, want := range map[uint64]bool{4: false, 5: true, 6: false, 7: false, 8: true, 9: true,
		10: false, 511: false, 512: false, 9999: false} {
		has, err := before.ReadPage(1, number*size, page)
		if err != nil || has != want || has &&
			!bytes.Equal(page, filledWith(10, 1)[number*size:(number+1)*size]) {
			t.Errorf("page %d: %v, %v, want %v", number, has, err, want)
		}
	}
	if has, err := before.ReadPage(3, 5*size, page); has || err != nil {
		t.Errorf("of a task that it does not know: %v, %v", has, err)
	}
	must(t, before.Close())
}

func TestStoreRemoteRefuses(t *testing.T) {
	s := newTestStore(t, 3*slotCost+2*int64(PageSize()))
	for name, maps := range map[string][]TaskMap{
		"no task":   {{Areas: []Area{{Pages: 1}}}},
		"object":    {{Task: lastTask, Areas: []Area{{Pages: 1}}}},
		"unaligned": {{Task: 1, Areas: []Area{{Start: 1, Pages: 1}}}},
		"beyond":    {{Task: 1, Areas: []Area{{Start: maxAddress - uint64(PageSize()), Pages: 2}}}},
	} {
		if err := s.Remote(maps); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Remote([]TaskMap{{Task: 1, Areas: []Area{{Pages: 3}}}}); !errors.Is(err, ErrStoreFull) {
		t.Errorf("more than the limit: %v", err)
	}
	must(t, s.Remote([]TaskMap{{Task: 1, Areas: []Area{{Pages: 2}}}}))
	must(t, s.Forget(1))
	if s.Bytes() != 0 {
		t.Errorf("%d bytes are counted of nothing", s.Bytes())
	}
	image, err := s.Seal()
	must(t, err)
	defer image.Close()
	if err := s.Remote(nil); err != nil {
		t.Error(err)
	}
	if err := s.Remote([]TaskMap{{Task: 1, Areas: []Area{{Pages: 1}}}}); err == nil {
		t.Error("Remote after Seal succeeds")
	}
}
