package files

import (
	"cmp"
	"container/heap"
	"errors"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// found is a name in a directory, and its type (unix.DT_*).
type found struct {
	name string
	kind byte
}

// sortedNames are the names of a directory in ascending order. A directory of any size takes a bounded
// amount of memory: further names are sorted in runs, which are kept on disk and merged.
type sortedNames struct {
	memory []found
	runs   runHeap
	disk   *spool // of the runs; nil if all names are in memory
}

// namesMemory is how many bytes of names are sorted in memory.
const namesMemory = 4 << 20

// listSorted reads all names of an open directory.
func listSorted(fd int, dir string, buffer []byte) (*sortedNames, error) {
	s := &sortedNames{}
	l := listing{buffer: buffer}
	for size := 0; ; {
		name, kind, err := l.read(fd)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			s.close()
			return nil, err
		}
		s.memory = append(s.memory, found{name, kind})
		if size += len(name) + 32; size > namesMemory {
			if err := s.spill(dir); err != nil {
				s.close()
				return nil, err
			}
			size = 0
		}
	}
	if s.disk == nil {
		s.sort()
		return s, nil
	}
	if err := s.spill(dir); err != nil {
		s.close()
		return nil, err
	}
	s.merge()
	return s, nil
}

// merge makes the runs one sequence.
func (s *sortedNames) merge() { heap.Init(&s.runs) }

func (s *sortedNames) sort() {
	slices.SortFunc(s.memory, func(a, b found) int { return strings.Compare(a.name, b.name) })
}

// spill writes the names in memory as a run.
func (s *sortedNames) spill(dir string) error {
	if s.disk == nil {
		s.disk = newSpool(dir)
	}
	s.sort()
	begin := s.disk.size()
	var p []byte
	for _, f := range s.memory {
		p = append(p, byte(len(f.name)), f.kind)
		p = append(p, f.name...)
	}
	if _, err := s.disk.append(p); err != nil {
		return err
	}
	s.memory = s.memory[:0]
	r := &run{in: s.disk.reader(begin, s.disk.size())}
	err := r.advance()
	if errors.Is(err, io.EOF) {
		return nil
	}
	s.runs = append(s.runs, r)
	return err
}

// peek returns the next name without consuming it; false at the end.
func (s *sortedNames) peek() (found, bool) {
	if len(s.runs) > 0 {
		return s.runs[0].head, true
	}
	if len(s.memory) > 0 {
		return s.memory[0], true
	}
	return found{}, false
}

// skip consumes the next name.
func (s *sortedNames) skip() error {
	if len(s.runs) == 0 {
		s.memory = s.memory[1:]
		return nil
	}
	err := s.runs[0].advance()
	if errors.Is(err, io.EOF) {
		heap.Pop(&s.runs)
		return nil
	}
	heap.Fix(&s.runs, 0)
	return err
}

func (s *sortedNames) close() {
	if s.disk != nil {
		s.disk.close()
	}
	s.runs, s.memory = nil, nil
}

// run is a sequence of sorted names on disk.
type run struct {
	in   *spoolReader
	head found
}

func (r *run) advance() error {
	p, err := r.in.next(2)
	if err != nil {
		return err
	}
	n, kind := int(p[0]), p[1]
	if p, err = r.in.next(n); err != nil {
		return err
	}
	r.head = found{string(p), kind}
	return nil
}

type runHeap []*run

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return cmp.Less(h[i].head.name, h[j].head.name) }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is for container/heap.
func (h *runHeap) Push(x any) { *h = append(*h, x.(*run)) }

// Pop is for container/heap.
func (h *runHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// typeOf queries the type of a name that the file system did not report. A name that is gone has none.
func typeOf(dirfd int, f found) (byte, error) {
	if f.kind != unix.DT_UNKNOWN {
		return f.kind, nil
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(dirfd, f.name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unix.DT_UNKNOWN, unlessGone(err)
	}
	return byte(stat.Mode & unix.S_IFMT >> 12), nil // DT_* are the type bits of st_mode
}
