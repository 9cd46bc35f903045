package files

import "testing"

func TestManyFilesWithSeveralNames(t *testing.T) {
	table := newLinkTable(scratch(t))
	defer table.close()
	check(t, table.move(64)) // To disk, sooner than usual.
	const count = 5000
	key := func(i int) inode { return inode{device: uint64(i % 3), number: uint64(i)} }
	for i := range count {
		l := linked{number: uint64(i) + 1, names: uint32(i % 7), round: uint64(i % 5), parked: i%2 == 0}
		check(t, table.keep(&l, &known{name: "n", links: l.number,
			content: content{form: contentList, offset: int64(i), count: 3}}))
		check(t, table.put(key(i), l))
		if i%3 == 0 {
			check(t, table.remove(key(i/2)))
			check(t, table.put(key(i/2), l))
		}
		if i >= count/2 && i%3 != 0 {
			check(t, table.remove(key(i)))
		}
	}
	for i := count / 4; i < count; i++ {
		l, found, err := table.get(key(i))
		check(t, err)
		gone := i >= count/2 && i%3 != 0
		if found == gone {
			t.Fatalf("inode %d: found %v", i, found)
		}
		if gone || i < count/2 && (2*i%3 == 0 || (2*i+1)%3 == 0) {
			continue
		}
		if want := uint64(i) + 1; l.number != want || l.names != uint32(i%7) || l.parked != (i%2 == 0) {
			t.Fatalf("inode %d: %+v", i, l)
		}
		k, err := table.load(l)
		check(t, err)
		if k.name != "n" || k.links != l.number || k.content.count != 3 || k.content.offset != int64(i) {
			t.Fatalf("state of inode %d: %+v", i, k)
		}
	}
}

func TestNamesOfALargeDirectoryAreSortedOnDisk(t *testing.T) {
	s := &sortedNames{}
	defer s.close()
	dir := scratch(t)
	const count = 10_000
	for i := range count {
		s.memory = append(s.memory,
			found{name: string(rune('a'+i*7919%26)) + string(rune('a'+i%26)) + string(rune(i)), kind: 8})
		if i%1500 == 1499 {
			check(t, s.spill(dir))
		}
	}
	check(t, s.spill(dir))
	s.merge()
	last, seen := "", 0
	for {
		f, more := s.peek()
		if !more {
			break
		}
		if f.name < last {
			t.Fatalf("%q comes after %q", f.name, last)
		}
		last, seen = f.name, seen+1
		check(t, s.skip())
	}
	if seen != count {
		t.Errorf("%d names, want %d", seen, count)
	}
}
