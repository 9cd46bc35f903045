package files

import (
	"crypto/sha256"
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// clear sends what is to be done before anything is made: names that are gone, and files that will
// have more names than one are parked under their number, because names come in any order.
func (c *copier) clear(found *scan) error {
	plan, err := found.differences()
	if err != nil {
		return err
	}
	var (
		in   = c.tree.manifest.frames()
		way  = newWay()
		gone goneNames
		part frame
	)
	for {
		err := in.next(&part)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := way.to(&part)
		skip := gone.above(path)
		if skip {
			if err := c.unnameAll(&part); err != nil {
				return err
			}
		}
		for plan.ok && plan.next.frame == part.offset {
			if !skip {
				if err := c.clearPart(path, &part, plan.next.deltas, &gone); err != nil {
					return err
				}
			}
			if err := plan.advance(); err != nil {
				return err
			}
		}
	}
}

func (c *copier) clearPart(path string, part *frame, deltas []delta, gone *goneNames) error {
	old := knownReader{part.entries}
	var entry known
	_, ok := old.next(&entry)
	for i := range deltas {
		d := &deltas[i]
		if !d.first() {
			continue
		}
		for ok && entry.name < d.name {
			_, ok = old.next(&entry)
		}
		if !ok || entry.name != d.name {
			continue
		}
		moves := c.moves(d, &entry)
		if d.kind == deltaChanged && !moves && !parks(d, &entry) {
			continue
		}
		if err := c.goTo(path); err != nil {
			return err
		}
		if d.kind != deltaChanged && entry.directory {
			gone.add(path, d.name)
		}
		var err error
		switch {
		case moves:
			c.away[sumOf(path, d.name)] = true
			c.moved[entry.stamp.inode()] = true
			err = c.park(&entry)
		case d.kind == deltaChanged:
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
func parks(d *delta, old *known) bool {
	return d.links > 1 && old.links == 0 && d.mode == unix.DT_REG && d.inode == old.stamp.inode()
}

// pathSum stands for a path, which may be long, where many are remembered.
type pathSum [sha256.Size]byte

func sumOf(directory, name string) pathSum { return sha256.Sum256([]byte(joined(directory, name))) }

// wasParked tells it of a name when that is looked at again.
func (c *copier) wasParked(path string, w *want) bool {
	return w.old != nil && (parks(&w.delta, w.old) || w.other && c.away[sumOf(path, w.name)])
}

// moves reports whether a file that had a name has another one now.
func (c *copier) moves(d *delta, old *known) bool {
	return (d.kind == deltaGone || d.kind == deltaReplaced || d.other) &&
		!old.directory && old.links == 0 && old.stamp.kind() == unix.S_IFREG &&
		c.arrived[old.stamp.inode()] && !c.moved[old.stamp.inode()]
}

// parkOnce parks a file that will have more names. If another of its names came to the mirror
// first, as a file of its own, that one stays, and gets this name too.
func (c *copier) parkOnce(old *known) error {
	_, known, err := c.tree.links.get(old.stamp.inode())
	if err != nil {
		return err
	}
	if known {
		return c.remove(old)
	}
	return c.park(old)
}

func (c *copier) park(old *known) error {
	c.tree.numbers++
	key, l := old.stamp.inode(), linked{number: c.tree.numbers, parked: true}
	if err := c.tree.links.keep(&l, old); err != nil {
		return err
	}
	c.waiting = append(c.waiting, key)
	if err := c.tree.links.put(key, l); err != nil {
		return err
	}
	return c.out.park(old.name, l.number)
}

// remove takes a name away from the mirror.
func (c *copier) remove(old *known) error {
	if old.links != 0 {
		if err := c.unname(old); err != nil {
			return err
		}
	}
	return c.out.remove(old.name)
}

func (c *copier) unname(old *known) error {
	key := old.stamp.inode()
	l, ok, err := c.tree.links.get(key)
	if err != nil || !ok || l.number != old.links {
		return err
	}
	if l.names--; l.names == 0 {
		c.nameless = append(c.nameless, key)
	}
	return c.tree.links.put(key, l)
}

// unnameAll is for a directory that was removed with all that is in it.
func (c *copier) unnameAll(part *frame) error {
	old := knownReader{part.entries}
	var entry known
	for {
		if _, ok := old.next(&entry); !ok {
			return nil
		}
		if entry.links == 0 {
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
		l, ok, err := c.tree.links.get(key)
		if err != nil {
			return err
		}
		if !ok || i < len(c.waiting) && !l.parked || l.names > 0 {
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
func (c *copier) forget(key inode, l linked) error {
	if err := c.tree.links.remove(key); err != nil {
		return err
	}
	return c.out.forget(l.number)
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
	f := &namesake{copier: c, reader: r, subject: s, key: inode{s.stat.Dev, s.stat.Ino}, old: w.old, res: res}
	if c.wasParked(job.path, w) {
		f.old = nil
	}
	if f.linked, f.found, err = c.tree.links.get(f.key); err != nil {
		return err
	}
	if f.found {
		if f.known, err = c.tree.links.load(f.linked); err != nil {
			return err
		}
	}
	switch {
	case s.stat.Nlink > 1:
		return f.severalNames()
	case f.found && f.parked:
		if err := f.clear(); err != nil {
			return err
		}
		return f.place()
	case f.old != nil && f.old.links != 0:
		return f.oneNameLeft()
	}
	return f.send(how{old: f.old})
}

// namesake is a file that has, or had, a number.
type namesake struct {
	*copier
	linked
	reader  *fileReader
	subject *subject
	key     inode
	found   bool   // then linked and known are the mirror's
	known   known  // of the inode
	old     *known // what the mirror has under the name
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
	if old.links != 0 && old.stamp.inode() == f.key && f.found && f.number == old.links {
		f.names--
	} else if old.links != 0 {
		if err := f.unname(old); err != nil {
			return err
		}
	}
	return f.out.remove(old.name)
}

// note keeps what the mirror has now.
func (f *namesake) note() error {
	f.round, f.known = f.source.number, f.res.known
	if err := f.tree.links.keep(&f.linked, &f.known); err != nil {
		return err
	}
	return f.tree.links.put(f.key, f.linked)
}

// oneNameLeft sends a file that had several names and has one.
func (f *namesake) oneNameLeft() error {
	s := f.subject
	if !f.found || f.number != f.old.links || f.known.stamp.kind() != s.entry.Type() || s.fd < 0 {
		if err := f.copier.remove(f.old); err != nil {
			return err
		}
		return f.send(how{})
	}
	if err := f.send(how{old: &f.known}); err != nil {
		return err
	}
	return f.forget(f.key, f.linked)
}

// place gives a parked file its name.
func (f *namesake) place() error {
	f.parked = false
	if err := f.send(how{old: &f.known, number: f.number}); err != nil {
		return err
	}
	if f.subject.entry.Links == 0 {
		return f.tree.links.remove(f.key)
	}
	f.names = 1
	return f.note()
}

// severalNames sends a name of an inode that has more of them.
func (f *namesake) severalNames() error {
	usable := f.found && f.usable()
	h := how{}
	if !usable && f.old != nil && f.old.adopted() && f.old.stamp.kind() == f.subject.entry.Type() {
		h.old, f.old = f.old, nil // its name stays, and it gets a number
	}
	if f.old != nil && (!usable || f.old.links != f.number) {
		if err := f.clear(); err != nil {
			return err
		}
	}
	entry := &f.subject.entry
	if !usable {
		f.tree.numbers++
		f.linked = linked{number: f.tree.numbers, names: 1}
		entry.Links = f.number
		if err := f.send(h); err != nil {
			return err
		}
		f.tree.doubtful = f.tree.doubtful || !f.res.known.settled
		return f.note()
	}
	entry.Links = f.number
	if f.parked {
		return f.place()
	}
	if f.old == nil {
		if err := f.out.link(entry.Name, f.number); err != nil {
			return err
		}
		f.names++
	}
	// an earlier name of it has brought all the rest, or it has to wait
	if f.round == f.source.number || f.subject.leased {
		f.res.known = f.known
		f.res.known.name = entry.Name
		f.res.known.settled = f.known.settled && !f.subject.leased
		return f.tree.links.put(f.key, f.linked)
	}
	if err := f.send(how{old: &f.known}); err != nil {
		return err
	}
	f.res.known.name = entry.Name
	return f.note()
}

// usable reports whether the mirror's inode can become what the source's is now.
func (f *namesake) usable() bool {
	s := f.subject
	if f.known.stamp.kind() != s.entry.Type() {
		return false
	}
	if s.fd >= 0 || s.leased || f.round == f.source.number {
		return true
	}
	entry := s.entry
	entry.Links = f.number
	return f.reader.attrs(&entry) == f.known.attrs
}
