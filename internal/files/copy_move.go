package files

import (
	"errors"
	"io"
	"slices"
	"strings"
)

// A directory that has another name than at the mirror, or another parent, is moved there before anything
// is compared: then everything that the mirror has in it counts. It is recognised by its inode. That may
// belong to another directory by now; then more is different in it, and nothing is wrong.

// piece is a directory of the mirror, with the part of the manifest about its contents.
type piece struct {
	from       string
	to         string // "": it is removed, if another one takes its place
	replaces   bool   // another directory is in its new place
	depth      int
	start, end int64
	number     uint64
}

// mover moves directories of a mirror and of its manifest.
type mover struct {
	*copier
	pieces []*piece
	starts map[int64]*piece
	leaves map[string]map[string]bool // names that directories lose
	comes  map[string][]*piece        // and names that they gain
}

// moveDirectories moves the directories that a scan has found elsewhere. It reports whether there were any.
func (s *Source) moveDirectories(c *copier, found *scan) (bool, error) {
	if len(found.candidates.found) == 0 {
		return false, nil
	}
	m := &mover{copier: c}
	if err := m.find(found.candidates.found); err != nil {
		return false, err
	}
	m.choose()
	if len(m.pieces) == 0 {
		return false, nil
	}
	if err := m.send(); err != nil {
		return false, err
	}
	c.fresh = newSpool(s.config.Dir)
	c.writer.out = c.fresh
	if err := m.rewrite(0, c.tree.manifest.size(), nil); err != nil {
		c.fresh.close()
		return false, err
	}
	c.tree.manifest.close()
	c.tree.manifest = c.fresh
	return true, c.finish()
}

// find looks for the candidates in the manifest.
func (m *mover) find(candidates map[inode]candidate) error {
	var (
		in       = m.tree.manifest.frames()
		way      = newWay()
		replaced = make(map[string]bool)
		seen     = make(map[inode]bool)
		inside   []*piece
		part     frame
	)
	for _, n := range candidates {
		if n.replaces {
			replaced[n.path] = true
		}
	}
	for {
		err := in.next(&part)
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return err
		}
		for n := len(inside) - 1; n >= 0 && (end || part.first && part.depth <= inside[n].depth); n-- {
			inside[n].end = part.offset
			inside = inside[:n]
		}
		if end {
			return nil
		}
		path := way.to(&part)
		if !part.first || part.depth == 0 {
			continue
		}
		key := part.self.stamp.inode()
		p := &piece{from: path, depth: part.depth, start: part.offset}
		if n, ok := candidates[key]; ok && n.path != path && !seen[key] {
			seen[key] = true
			p.to, p.replaces = n.path, n.replaces
		} else if !replaced[path] {
			continue
		}
		p.from = strings.Clone(path)
		m.pieces, inside = append(m.pieces, p), append(inside, p)
	}
}

// choose selects those that can be moved now: into directories that stay where they are, and to places that
// are free by then.
func (m *mover) choose() {
	for {
		gone := make(map[string]bool)
		wanted := make(map[string]bool)
		for _, p := range m.pieces {
			gone[p.from] = true
			wanted[p.to] = true
		}
		before := len(m.pieces)
		m.pieces = slices.DeleteFunc(m.pieces, func(p *piece) bool {
			if p.to == "" {
				return !wanted[p.from]
			}
			return p.replaces && !gone[p.to] || leadsThrough(gone, parent(p.to))
		})
		if len(m.pieces) == before {
			return
		}
	}
}

// leadsThrough reports whether a path is one of these, or leads through one.
func leadsThrough(gone map[string]bool, path string) bool {
	for ; path != ""; path = parent(path) {
		if gone[path] {
			return true
		}
	}
	return false
}

// send parks all of them, the deepest first, and then gives them their new names.
func (m *mover) send() error {
	m.starts, m.leaves, m.comes = make(map[int64]*piece), make(map[string]map[string]bool),
		make(map[string][]*piece)
	slices.SortFunc(m.pieces, func(a, b *piece) int { return strings.Compare(b.from, a.from) })
	for _, p := range m.pieces {
		in, name := parent(p.from), lastName(p.from)
		if m.leaves[in] == nil {
			m.leaves[in] = make(map[string]bool)
		}
		m.leaves[in][name] = true
		m.starts[p.start] = p
		if err := m.goTo(in); err != nil {
			return err
		}
		var err error
		if p.to == "" {
			err = m.out.remove(name)
		} else {
			m.tree.numbers++
			p.number = m.tree.numbers
			err = m.out.park(name, p.number)
		}
		if err != nil {
			return err
		}
	}
	slices.SortFunc(m.pieces, func(a, b *piece) int { return strings.Compare(a.to, b.to) })
	for _, p := range m.pieces {
		if p.to == "" {
			continue
		}
		in := parent(p.to)
		m.comes[in] = append(m.comes[in], p)
		if err := m.goTo(in); err != nil {
			return err
		}
		if err := m.out.placeDirectory(p.number, lastName(p.to)); err != nil {
			return err
		}
		m.at = p.to
	}
	return nil
}

func lastName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// rewrite copies a part of the old manifest to the new one, with the new place of a piece.
func (m *mover) rewrite(start, end int64, moved *piece) error {
	var (
		in      = &frames{m.tree.manifest.reader(start, end)}
		way     = newWay()
		part    frame
		base    int
		waiting []*piece
	)
	if moved != nil {
		base = moved.depth
	}
	for {
		err := in.next(&part)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if p := m.starts[part.offset]; p != nil && p != moved {
			in = &frames{m.tree.manifest.reader(p.end, end)}
			if p.to == "" {
				if err := m.unnamePiece(p); err != nil {
					return err
				}
			}
			continue
		}
		part.depth -= base
		old := way.to(&part)
		if moved != nil {
			old = strings.TrimSuffix(joined(moved.from, old), "/")
			if part.depth == 0 {
				part.name = lastName(moved.to)
			}
			part.depth += depthOf(moved.to)
		} else if part.first {
			waiting = m.comes[old]
		}
		if waiting, err = m.frame(&part, m.leaves[old], waiting); err != nil {
			return err
		}
		if !part.last || moved != nil {
			continue
		}
		for _, p := range m.comes[old] {
			if err := m.rewrite(p.start, p.end, p); err != nil {
				return err
			}
		}
	}
}

// depthOf returns the depth of a directory below a tree's root.
func depthOf(path string) int { return strings.Count(path, "/") + 1 }

// frame writes a frame, without names that the directory has lost, and with those that it has gained. It
// returns those that belong to a later frame.
func (m *mover) frame(part *frame, gone map[string]bool, waiting []*piece) ([]*piece, error) {
	m.writer.begin(part)
	old := knownReader{part.entries}
	var entry known
	for {
		raw, ok := old.next(&entry)
		for len(waiting) > 0 && (ok && lastName(waiting[0].to) <= entry.name || !ok && part.last) {
			if err := m.writer.add(&known{name: lastName(waiting[0].to), directory: true}); err != nil {
				return nil, err
			}
			waiting = waiting[1:]
		}
		if !ok {
			return waiting, m.writer.end()
		}
		if entry.directory && gone[entry.name] {
			continue
		}
		if err := m.writer.raw(raw); err != nil {
			return nil, err
		}
	}
}

// unnamePiece handles a directory that was removed, except what was moved out of it.
func (m *mover) unnamePiece(removed *piece) error {
	in := &frames{m.tree.manifest.reader(removed.start, removed.end)}
	var part frame
	for {
		err := in.next(&part)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if p := m.starts[part.offset]; p != nil && p != removed {
			in = &frames{m.tree.manifest.reader(p.end, removed.end)}
			if p.to == "" {
				if err := m.unnamePiece(p); err != nil {
					return err
				}
			}
			continue
		}
		if err := m.unnameAll(&part); err != nil {
			return err
		}
	}
}
