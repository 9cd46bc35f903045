package compare

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/manifest"
)

// job compares the parts of one job.
func (s *Scan) job(w *scanWorker, job *scanJob) error {
	if w.listing == nil {
		w.listing = make([]byte, fsys.ListingBuffer)
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
func (s *Scan) keep(w *scanWorker, job *scanJob, limit int) error {
	if len(w.out) <= limit {
		return nil
	}
	if job.out == nil {
		job.out = manifest.NewSpool(s.Dir)
	}
	_, err := job.out.Append(w.out)
	w.out = w.out[:0]
	return err
}

func (s *Scan) part(w *scanWorker, job *scanJob, part *scanPart) error {
	if part.dir != nil {
		return s.compare(w, part, part.dir.Fd)
	}
	if part.long {
		return s.absent(w, part)
	}
	fd, err := fsys.OpenBelow(s.Tree.Root, part.path)
	if fsys.Moved(err) {
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
	defer names.Close()
	return split(part, names, func(piece scanPart) error {
		if err := s.compare(w, &piece, fd); err != nil {
			return err
		}
		return s.keep(w, job, manifest.SpoolMemory)
	})
}

func (s *Scan) absent(w *scanWorker, part *scanPart) error {
	w.found = difference{Frame: part.Offset, Absent: true, Deltas: w.found.Deltas[:0]}
	w.out = w.found.appendTo(w.out)
	return nil
}

// compare compares the names of a part, and the directory itself if it is the first part.
func (s *Scan) compare(w *scanWorker, part *scanPart, fd int) error {
	d := &w.found
	*d = difference{Frame: part.Offset, Deltas: d.Deltas[:0]}
	if part.First {
		s.Entries.Add(1)
		d.Stamp = manifest.StampOf(&part.stat)
		d.Quiet = s.Since.Settled(s.Tree, &part.stat, "")
		d.Self = !part.Self.Settled || !s.Believed || d.Stamp != part.Self.Stamp
		if was, is := part.Self.Stamp.Inode(), d.Stamp.Inode(); was != is && was != (manifest.Inode{}) &&
			part.Depth > 0 {
			s.Candidates.add(is, part.path, true)
		}
	}
	if !part.listed && s.Shallow {
		return s.found(w)
	}
	old, names := manifest.KnownReader{Unread: part.Entries}, part.names
	var entry manifest.Known
	for {
		_, ok := old.Next(&entry)
		for part.listed && len(names) > 0 && (!ok || names[0].Name < entry.Name) {
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
		if len(names) == 0 || names[0].Name != entry.Name {
			d.Deltas = append(d.Deltas, Delta{Kind: DeltaGone, Name: entry.Name})
			continue
		}
		if err := s.same(d, fd, &entry, names[0].Kind, true); err != nil {
			return err
		}
		for len(names) > 0 && names[0].Name == entry.Name { // listed twice: it was moved meanwhile
			names = names[1:]
		}
	}
	return s.found(w)
}

func (s *Scan) found(w *scanWorker) error {
	for i := range w.found.Deltas {
		if w.found.Deltas[i].First() {
			s.Removes.Store(true)
		}
	}
	if w.found.Self || len(w.found.Deltas) > 0 {
		w.out = w.found.appendTo(w.out)
	}
	return nil
}

// same compares a name at the mirror with the present file.
func (s *Scan) same(d *difference, fd int, entry *manifest.Known, kind byte, listed bool) error {
	if entry.Directory {
		if !listed || kind == unix.DT_DIR {
			return nil
		}
	} else {
		s.Entries.Add(1)
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(fd, entry.Name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			d.Deltas = append(d.Deltas, Delta{Kind: DeltaGone, Name: entry.Name})
			return nil
		}
		return fmt.Errorf("%q: %w", entry.Name, err)
	}
	directory := stat.Mode&unix.S_IFMT == unix.S_IFDIR
	if entry.Directory && directory {
		return nil
	}
	now := manifest.StampOf(&stat)
	if !entry.Directory && now == entry.Stamp && (entry.Settled && s.Believed || s.Trusting || s.Shallow) {
		return nil
	}
	c := Delta{Kind: DeltaChanged, Name: entry.Name, Mode: byte(now.Kind() >> 12), Inode: now.Inode(),
		Links: uint64(stat.Nlink)}
	if entry.Directory || now.Kind() != entry.Stamp.Kind() {
		c.Kind = DeltaReplaced
	} else if c.Other = c.Inode != entry.Stamp.Inode(); c.Other {
		s.Arrived.add(&c, stat.Size)
	}
	d.Deltas = append(d.Deltas, c)
	return nil
}

// fresh records a new name.
func (s *Scan) fresh(d *difference, fd int, path string, name manifest.Found) error {
	if n := len(d.Deltas); n > 0 && d.Deltas[n-1].Name == name.Name {
		return nil // listed twice
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(fd, name.Name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fsys.UnlessGone(err)
	}
	c := Delta{Kind: DeltaNew, Name: name.Name, Mode: byte(stat.Mode & unix.S_IFMT >> 12)}
	c.Inode, c.Links = manifest.Inode{Device: stat.Dev, Number: stat.Ino}, uint64(stat.Nlink)
	if c.Mode == unix.DT_DIR {
		s.Candidates.add(c.Inode, manifest.Joined(path, name.Name), false)
	} else if s.Shallow && c.Links > 1 {
		if _, known, err := s.Tree.Links.Get(c.Inode); err != nil {
			return err
		} else if !known {
			s.Unknown.Store(true)
		}
	}
	s.Arrived.add(&c, stat.Size)
	d.Deltas = append(d.Deltas, c)
	return nil
}

// arrivals are files under new names. Files that had another name are not sent again: the mirror has them.
type arrivals struct {
	mu     sync.Mutex
	Inodes map[manifest.Inode]bool
}

const (
	arrivalsMost = 1 << 16 // more are sent again
	worthMoving  = 4 << 10 // smaller files are sent rather than moved
)

func (a *arrivals) add(d *Delta, size int64) {
	if d.Mode != unix.DT_REG || d.Links != 1 || size < worthMoving {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Inodes == nil {
		a.Inodes = make(map[manifest.Inode]bool)
	}
	if len(a.Inodes) < arrivalsMost {
		a.Inodes[d.Inode] = true
	}
}
