package manifest

import (
	"cmp"
	"container/heap"
	"errors"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
)

// Found is a name in a directory, and its type (unix.DT_*).
type Found struct {
	Name string
	Kind byte
}

// SortedNames are the names of a directory in ascending order. A directory of any size takes a bounded
// amount of memory: further names are sorted in runs, which are kept on disk and merged.
type SortedNames struct {
	memory []Found
	runs   runHeap
	disk   *Spool // of the runs; nil if all names are in memory
}

// namesMemory is how many bytes of names are sorted in memory.
const namesMemory = 4 << 20

// ListSorted reads all names of an open directory.
func ListSorted(fd int, dir string, buffer []byte) (*SortedNames, error) {
	s := &SortedNames{}
	l := fsys.Listing{Buffer: buffer}
	for size := 0; ; {
		name, kind, err := l.Read(fd)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			s.Close()
			return nil, err
		}
		s.memory = append(s.memory, Found{name, kind})
		if size += len(name) + 32; size > namesMemory {
			if err := s.spill(dir); err != nil {
				s.Close()
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
		s.Close()
		return nil, err
	}
	s.merge()
	return s, nil
}

// merge makes the runs one sequence.
func (s *SortedNames) merge() { heap.Init(&s.runs) }

func (s *SortedNames) sort() {
	slices.SortFunc(s.memory, func(a, b Found) int { return strings.Compare(a.Name, b.Name) })
}

// spill writes the names in memory as a run.
func (s *SortedNames) spill(dir string) error {
	if s.disk == nil {
		s.disk = NewSpool(dir)
	}
	s.sort()
	begin := s.disk.Size()
	var p []byte
	for _, f := range s.memory {
		p = append(p, byte(len(f.Name)), f.Kind)
		p = append(p, f.Name...)
	}
	if _, err := s.disk.Append(p); err != nil {
		return err
	}
	s.memory = s.memory[:0]
	r := &run{in: s.disk.Reader(begin, s.disk.Size())}
	err := r.advance()
	if errors.Is(err, io.EOF) {
		return nil
	}
	s.runs = append(s.runs, r)
	return err
}

// Peek returns the next name without consuming it; false at the end.
func (s *SortedNames) Peek() (Found, bool) {
	if len(s.runs) > 0 {
		return s.runs[0].head, true
	}
	if len(s.memory) > 0 {
		return s.memory[0], true
	}
	return Found{}, false
}

// Skip consumes the next name.
func (s *SortedNames) Skip() error {
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

// Close removes what the names have on disk.
func (s *SortedNames) Close() {
	if s.disk != nil {
		s.disk.Close()
	}
	s.runs, s.memory = nil, nil
}

// run is a sequence of sorted names on disk.
type run struct {
	in   *SpoolReader
	head Found
}

func (r *run) advance() error {
	p, err := r.in.Next(2)
	if err != nil {
		return err
	}
	n, kind := int(p[0]), p[1]
	if p, err = r.in.Next(n); err != nil {
		return err
	}
	r.head = Found{string(p), kind}
	return nil
}

type runHeap []*run

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return cmp.Less(h[i].head.Name, h[j].head.Name) }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is for container/heap.
func (h *runHeap) Push(x any) { *h = append(*h, x.(*run)) }

// Pop is for container/heap.
func (h *runHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// TypeOf queries the type of a name that the file system did not report. A name that is gone has none.
func TypeOf(dirfd int, f Found) (byte, error) {
	if f.Kind != unix.DT_UNKNOWN {
		return f.Kind, nil
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(dirfd, f.Name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unix.DT_UNKNOWN, fsys.UnlessGone(err)
	}
	return byte(stat.Mode & unix.S_IFMT >> 12), nil // DT_* are the type bits of st_mode
}
