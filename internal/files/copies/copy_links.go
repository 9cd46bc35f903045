package copies

import (
	"crypto/sha256"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/manifest"
)

// clear sends what is to be done before anything is made: names that are gone, and files that will
// have more names than one are parked under their number, because names come in any order.
func (c *copier) clear(found *compare.Scan) error {
	plan, err := found.Differences()
	if err != nil {
		return err
	}
	var (
		in   = c.tree.Manifest.Frames()
		way  = manifest.NewWay()
		gone goneNames
		part manifest.Frame
	)
	for {
		err := in.Next(&part)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := way.To(&part)
		skip := gone.above(path)
		if skip {
			if err := c.unnameAll(&part); err != nil {
				return err
			}
		}
		for plan.Ok && plan.Next.Frame == part.Offset {
			if !skip {
				if err := c.clearPart(path, &part, plan.Next.Deltas, &gone); err != nil {
					return err
				}
			}
			if err := plan.Advance(); err != nil {
				return err
			}
		}
	}
}

func (c *copier) clearPart(path string, part *manifest.Frame, deltas []compare.Delta, gone *goneNames) error {
	old := manifest.KnownReader{Unread: part.Entries}
	var entry manifest.Known
	_, ok := old.Next(&entry)
	for i := range deltas {
		d := &deltas[i]
		if !d.First() {
			continue
		}
		for ok && entry.Name < d.Name {
			_, ok = old.Next(&entry)
		}
		if !ok || entry.Name != d.Name {
			continue
		}
		moves := c.moves(d, &entry)
		if d.Kind == compare.DeltaChanged && !moves && !parks(d, &entry) {
			continue
		}
		if err := c.goTo(path); err != nil {
			return err
		}
		if d.Kind != compare.DeltaChanged && entry.Directory {
			gone.add(path, d.Name)
		}
		var err error
		switch {
		case moves:
			c.away[sumOf(path, d.Name)] = true
			c.moved[entry.Stamp.Inode()] = true
			err = c.park(&entry)
		case d.Kind == compare.DeltaChanged:
			err = c.parkOnce(&entry)
		default:
			err = c.remove(&entry)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parks reports whether a file had one name and has more now.
func parks(d *compare.Delta, old *manifest.Known) bool {
	return d.Links > 1 && old.Links == 0 && d.Mode == unix.DT_REG && d.Inode == old.Stamp.Inode()
}

// pathSum stands for a path, which may be long, where many are remembered.
type pathSum [sha256.Size]byte

func sumOf(directory, name string) pathSum {
	return sha256.Sum256([]byte(manifest.Joined(directory, name)))
}

// wasParked tells it of a name when that is looked at again.
func (c *copier) wasParked(path string, w *want) bool {
	return w.old != nil && (parks(&w.Delta, w.old) || w.Other && c.away[sumOf(path, w.Name)])
}

// moves reports whether a file that had a name has another one now.
func (c *copier) moves(d *compare.Delta, old *manifest.Known) bool {
	return (d.Kind == compare.DeltaGone || d.Kind == compare.DeltaReplaced || d.Other) &&
		!old.Directory && old.Links == 0 && old.Stamp.Kind() == unix.S_IFREG &&
		c.arrived[old.Stamp.Inode()] && !c.moved[old.Stamp.Inode()]
}

// parkOnce parks a file that will have more names. If another of its names came to the mirror
// first, as a file of its own, that one stays, and gets this name too.
func (c *copier) parkOnce(old *manifest.Known) error {
	_, known, err := c.tree.Links.Get(old.Stamp.Inode())
	if err != nil {
		return err
	}
	if known {
		return c.remove(old)
	}
	return c.park(old)
}

func (c *copier) park(old *manifest.Known) error {
	c.tree.numbers++
	key, l := old.Stamp.Inode(), manifest.Linked{Number: c.tree.numbers, Parked: true}
	if err := c.tree.Links.Keep(&l, old); err != nil {
		return err
	}
	c.waiting = append(c.waiting, key)
	if err := c.tree.Links.Put(key, l); err != nil {
		return err
	}
	return c.out.Park(old.Name, l.Number)
}

// remove takes a name away from the mirror.
func (c *copier) remove(old *manifest.Known) error {
	if old.Links != 0 {
		if err := c.unname(old); err != nil {
			return err
		}
	}
	return c.out.Remove(old.Name)
}

func (c *copier) unname(old *manifest.Known) error {
	key := old.Stamp.Inode()
	l, ok, err := c.tree.Links.Get(key)
	if err != nil || !ok || l.Number != old.Links {
		return err
	}
	if l.Names--; l.Names == 0 {
		c.nameless = append(c.nameless, key)
	}
	return c.tree.Links.Put(key, l)
}

// unnameAll is for a directory that was removed with all that is in it.
func (c *copier) unnameAll(part *manifest.Frame) error {
	old := manifest.KnownReader{Unread: part.Entries}
	var entry manifest.Known
	for {
		if _, ok := old.Next(&entry); !ok {
			return nil
		}
		if entry.Links == 0 {
			continue
		}
		if err := c.unname(&entry); err != nil {
			return err
		}
	}
}

// forgetUnused ends the numbers of inodes that have no name any more.
func (c *copier) forgetUnused() error {
	for i, key := range append(c.waiting, c.nameless...) {
		l, ok, err := c.tree.Links.Get(key)
		if err != nil {
			return err
		}
		if !ok || i < len(c.waiting) && !l.Parked || l.Names > 0 {
			continue
		}
		if err := c.goTo(""); err != nil {
			return err
		}
		if err := c.forget(key, l); err != nil {
			return err
		}
	}
	return nil
}

// forget ends a number.
func (c *copier) forget(key manifest.Inode, l manifest.Linked) error {
	if err := c.tree.Links.Remove(key); err != nil {
		return err
	}
	return c.out.Forget(l.Number)
}

// deferred does what a worker left to emit: files that have several names, or are large, or found no room.
func (c *copier) deferred(job *copyJob, w *want, res *result) error {
	r := c.readers[len(c.readers)-1]
	s, err := c.open(r, job, w)
	if err != nil || s == nil {
		res.lost = s == nil
		return err
	}
	defer s.close()
	if err := c.goTo(job.path); err != nil {
		return err
	}
	f := &namesake{copier: c, reader: r, subject: s, key: manifest.Inode{Device: s.stat.Dev,
		Number: s.stat.Ino}, old: w.old, res: res}
	if c.wasParked(job.path, w) {
		f.old = nil
	}
	if f.Linked, f.found, err = c.tree.Links.Get(f.key); err != nil {
		return err
	}
	if f.found {
		if f.known, err = c.tree.Links.Load(f.Linked); err != nil {
			return err
		}
	}
	switch {
	case s.stat.Nlink > 1:
		return f.severalNames()
	case f.found && f.Parked:
		if err := f.clear(); err != nil {
			return err
		}
		return f.place()
	case f.old != nil && f.old.Links != 0:
		return f.oneNameLeft()
	}
	return f.send(how{old: f.old})
}

// namesake is a file that has, or had, a number.
type namesake struct {
	*copier
	manifest.Linked
	reader  *fileReader
	subject *subject
	key     manifest.Inode
	found   bool            // then linked and known are the mirror's
	known   manifest.Known  // of the inode
	old     *manifest.Known // what the mirror has under the name
	res     *result
}

func (f *namesake) send(h how) error { return f.content(f.reader, f.subject, h, f.res) }

// clear removes the name from the mirror.
func (f *namesake) clear() error {
	if f.old == nil {
		return nil
	}
	old := f.old
	f.old = nil
	if old.Links != 0 && old.Stamp.Inode() == f.key && f.found && f.Number == old.Links {
		f.Names--
	} else if old.Links != 0 {
		if err := f.unname(old); err != nil {
			return err
		}
	}
	return f.out.Remove(old.Name)
}

// note keeps what the mirror has now.
func (f *namesake) note() error {
	f.Round, f.known = f.source.number, f.res.known
	if err := f.tree.Links.Keep(&f.Linked, &f.known); err != nil {
		return err
	}
	return f.tree.Links.Put(f.key, f.Linked)
}

// oneNameLeft sends a file that had several names and has one.
func (f *namesake) oneNameLeft() error {
	s := f.subject
	if !f.found || f.Number != f.old.Links || f.known.Stamp.Kind() != s.entry.Type() || s.fd < 0 {
		if err := f.copier.remove(f.old); err != nil {
			return err
		}
		return f.send(how{})
	}
	if err := f.send(how{old: &f.known}); err != nil {
		return err
	}
	return f.forget(f.key, f.Linked)
}

// place gives a parked file its name.
func (f *namesake) place() error {
	f.Parked = false
	if err := f.send(how{old: &f.known, number: f.Number}); err != nil {
		return err
	}
	if f.subject.entry.Links == 0 {
		return f.tree.Links.Remove(f.key)
	}
	f.Names = 1
	return f.note()
}

// severalNames sends a name of an inode that has more of them.
func (f *namesake) severalNames() error {
	usable := f.found && f.usable()
	h := how{}
	if !usable && f.old != nil && f.old.Adopted() && f.old.Stamp.Kind() == f.subject.entry.Type() {
		h.old, f.old = f.old, nil // its name stays, and it gets a number
	}
	if f.old != nil && (!usable || f.old.Links != f.Number) {
		if err := f.clear(); err != nil {
			return err
		}
	}
	entry := &f.subject.entry
	if !usable {
		f.tree.numbers++
		f.Linked = manifest.Linked{Number: f.tree.numbers, Names: 1}
		entry.Links = f.Number
		if err := f.send(h); err != nil {
			return err
		}
		f.tree.doubtful = f.tree.doubtful || !f.res.known.Settled
		return f.note()
	}
	entry.Links = f.Number
	if f.Parked {
		return f.place()
	}
	if f.old == nil {
		if err := f.out.Link(entry.Name, f.Number); err != nil {
			return err
		}
		f.Names++
	}
	// an earlier name of it has brought all the rest, or it has to wait
	if f.Round == f.source.number || f.subject.leased {
		f.res.known = f.known
		f.res.known.Name = entry.Name
		f.res.known.Settled = f.known.Settled && !f.subject.leased
		return f.tree.Links.Put(f.key, f.Linked)
	}
	if err := f.send(how{old: &f.known}); err != nil {
		return err
	}
	f.res.known.Name = entry.Name
	return f.note()
}

// usable reports whether the mirror's inode can become what the source's is now.
func (f *namesake) usable() bool {
	s := f.subject
	if f.known.Stamp.Kind() != s.entry.Type() {
		return false
	}
	if s.fd >= 0 || s.leased || f.Round == f.source.number {
		return true
	}
	entry := s.entry
	entry.Links = f.Number
	return f.reader.attrs(&entry) == f.known.Attrs
}
