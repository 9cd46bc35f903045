package files

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// job compares the parts of one job.
func (s *scan) job(w *scanWorker, job *scanJob) error {
	if w.listing == nil {
		w.listing = make([]byte, listingBuffer)
	}
	for i := range job.parts {
		part := &job.parts[i]
		if err := s.part(w, job, part); err != nil {
			return fmt.Errorf("%q: %w", part.path, err)
		}
	}
	return s.keep(w, job, 0)
}

// keep moves large results to disk.
func (s *scan) keep(w *scanWorker, job *scanJob, limit int) error {
	if len(w.out) <= limit {
		return nil
	}
	if job.out == nil {
		job.out = newSpool(s.dir)
	}
	_, err := job.out.append(w.out)
	w.out = w.out[:0]
	return err
}

func (s *scan) part(w *scanWorker, job *scanJob, part *scanPart) error {
	if part.dir != nil {
		return s.compare(w, part, part.dir.fd)
	}
	if part.long {
		return s.absent(w, part)
	}
	fd, err := openBelow(s.tree.root, part.path)
	if moved(err) {
		return s.absent(w, part)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &part.stat); err != nil {
		return err
	}
	names, err := s.list(part, fd, w.listing)
	if err != nil {
		return err
	}
	if names == nil {
		return s.compare(w, part, fd)
	}
	defer names.close()
	return split(part, names, func(piece scanPart) error {
		if err := s.compare(w, &piece, fd); err != nil {
			return err
		}
		return s.keep(w, job, spoolMemory)
	})
}

func (s *scan) absent(w *scanWorker, part *scanPart) error {
	w.found = difference{frame: part.offset, absent: true, deltas: w.found.deltas[:0]}
	w.out = w.found.appendTo(w.out)
	return nil
}

// compare compares the names of a part, and the directory itself if it is the first part.
func (s *scan) compare(w *scanWorker, part *scanPart, fd int) error {
	d := &w.found
	*d = difference{frame: part.offset, deltas: d.deltas[:0]}
	if part.first {
		s.entries.Add(1)
		d.stamp = stampOf(&part.stat)
		d.quiet = s.since.settled(s.tree, &part.stat, "")
		d.self = !part.self.settled || !s.believed || d.stamp != part.self.stamp
		if was, is := part.self.stamp.inode(), d.stamp.inode(); was != is && was != (inode{}) &&
			part.depth > 0 {
			s.candidates.add(is, part.path, true)
		}
	}
	if !part.listed && s.shallow {
		return s.found(w)
	}
	old, names := knownReader{part.entries}, part.names
	var entry known
	for {
		_, ok := old.next(&entry)
		for part.listed && len(names) > 0 && (!ok || names[0].name < entry.name) {
			if err := s.fresh(d, fd, part.path, names[0]); err != nil {
				return err
			}
			names = names[1:]
		}
		if !ok {
			break
		}
		if !part.listed {
			if err := s.same(d, fd, &entry, unix.DT_UNKNOWN, false); err != nil {
				return err
			}
			continue
		}
		if len(names) == 0 || names[0].name != entry.name {
			d.deltas = append(d.deltas, delta{kind: deltaGone, name: entry.name})
			continue
		}
		if err := s.same(d, fd, &entry, names[0].kind, true); err != nil {
			return err
		}
		for len(names) > 0 && names[0].name == entry.name { // listed twice: it was moved meanwhile
			names = names[1:]
		}
	}
	return s.found(w)
}

func (s *scan) found(w *scanWorker) error {
	for i := range w.found.deltas {
		if w.found.deltas[i].first() {
			s.removes.Store(true)
		}
	}
	if w.found.self || len(w.found.deltas) > 0 {
		w.out = w.found.appendTo(w.out)
	}
	return nil
}

// same compares a name at the mirror with the present file.
func (s *scan) same(d *difference, fd int, entry *known, kind byte, listed bool) error {
	if entry.directory {
		if !listed || kind == unix.DT_DIR {
			return nil
		}
	} else {
		s.entries.Add(1)
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(fd, entry.name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			d.deltas = append(d.deltas, delta{kind: deltaGone, name: entry.name})
			return nil
		}
		return fmt.Errorf("%q: %w", entry.name, err)
	}
	directory := stat.Mode&unix.S_IFMT == unix.S_IFDIR
	if entry.directory && directory {
		return nil
	}
	now := stampOf(&stat)
	if !entry.directory && now == entry.stamp && (entry.settled && s.believed || s.trusting || s.shallow) {
		return nil
	}
	c := delta{kind: deltaChanged, name: entry.name, mode: byte(now.kind() >> 12), inode: now.inode(),
		links: uint64(stat.Nlink)}
	if entry.directory || now.kind() != entry.stamp.kind() {
		c.kind = deltaReplaced
	} else if c.other = c.inode != entry.stamp.inode(); c.other {
		s.arrived.add(&c, stat.Size)
	}
	d.deltas = append(d.deltas, c)
	return nil
}

// fresh records a new name.
func (s *scan) fresh(d *difference, fd int, path string, name found) error {
	if n := len(d.deltas); n > 0 && d.deltas[n-1].name == name.name {
		return nil // listed twice
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(fd, name.name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unlessGone(err)
	}
	c := delta{kind: deltaNew, name: name.name, mode: byte(stat.Mode & unix.S_IFMT >> 12)}
	c.inode, c.links = inode{stat.Dev, stat.Ino}, uint64(stat.Nlink)
	if c.mode == unix.DT_DIR {
		s.candidates.add(c.inode, joined(path, name.name), false)
	} else if s.shallow && c.links > 1 {
		if _, known, err := s.tree.links.get(c.inode); err != nil {
			return err
		} else if !known {
			s.unknown.Store(true)
		}
	}
	s.arrived.add(&c, stat.Size)
	d.deltas = append(d.deltas, c)
	return nil
}

// arrivals are files under new names. Files that had another name are not sent again: the mirror has them.
type arrivals struct {
	mu     sync.Mutex
	inodes map[inode]bool
}

const (
	arrivalsMost = 1 << 16 // more are sent again
	worthMoving  = 4 << 10 // smaller files are sent rather than moved
)

func (a *arrivals) add(d *delta, size int64) {
	if d.mode != unix.DT_REG || d.links != 1 || size < worthMoving {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inodes == nil {
		a.inodes = make(map[inode]bool)
	}
	if len(a.inodes) < arrivalsMost {
		a.inodes[d.inode] = true
	}
}
