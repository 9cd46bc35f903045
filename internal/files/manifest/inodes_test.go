package manifest

import "testing"

func TestManyFilesWithSeveralNames(t *testing.T) {
	table := NewLinkTable(scratch(t))
	defer table.Close()
	check(t, table.move(64)) // To disk, sooner than usual.
	const count = 5000
	key := func(i int) Inode { return Inode{Device: uint64(i % 3), Number: uint64(i)} }
	for i := range count {
		l := Linked{Number: uint64(i) + 1, Names: uint32(i % 7), Round: uint64(i % 5), Parked: i%2 == 0}
		check(t, table.Keep(&l, &Known{Name: "n", Links: l.Number,
			Content: Content{Form: ContentList, Offset: int64(i), Count: 3}}))
		check(t, table.Put(key(i), l))
		if i%3 == 0 {
			check(t, table.Remove(key(i/2)))
			check(t, table.Put(key(i/2), l))
		}
		if i >= count/2 && i%3 != 0 {
			check(t, table.Remove(key(i)))
		}
	}
	for i := count / 4; i < count; i++ {
		l, found, err := table.Get(key(i))
		check(t, err)
		gone := i >= count/2 && i%3 != 0
		if found == gone {
			t.Fatalf("inode %d: found %v", i, found)
		}
		if gone || i < count/2 && (2*i%3 == 0 || (2*i+1)%3 == 0) {
			continue
		}
		if want := uint64(i) + 1; l.Number != want || l.Names != uint32(i%7) || l.Parked != (i%2 == 0) {
			t.Fatalf("inode %d: %+v", i, l)
		}
		k, err := table.Load(l)
		check(t, err)
		if k.Name != "n" || k.Links != l.Number || k.Content.Count != 3 || k.Content.Offset != int64(i) {
			t.Fatalf("state of inode %d: %+v", i, k)
		}
	}
}

func TestNamesOfALargeDirectoryAreSortedOnDisk(t *testing.T) {
	s := &SortedNames{}
	defer s.Close()
	dir := scratch(t)
	const count = 10_000
	for i := range count {
		s.memory = append(s.memory,
			Found{Name: string(rune('a'+i*7919%26)) + string(rune('a'+i%26)) + string(rune(i)), Kind: 8})
		if i%1500 == 1499 {
			check(t, s.spill(dir))
		}
	}
	check(t, s.spill(dir))
	s.merge()
	last, seen := "", 0
	for {
		f, more := s.Peek()
		if !more {
			break
		}
		if f.Name < last {
			t.Fatalf("%q comes after %q", f.Name, last)
		}
		last, seen = f.Name, seen+1
		check(t, s.Skip())
	}
	if seen != count {
		t.Errorf("%d names, want %d", seen, count)
	}
}
