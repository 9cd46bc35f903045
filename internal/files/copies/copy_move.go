package copies

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/manifest"
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
func (s *Source) moveDirectories(c *copier, found *compare.Scan) (bool, error) {
	if len(found.Candidates.Found) == 0 {
		return false, nil
	}
	m := &mover{copier: c}
	if err := m.find(found.Candidates.Found); err != nil {
		return false, err
	}
	m.choose()
	if len(m.pieces) == 0 {
		return false, nil
	}
	if err := m.send(); err != nil {
		return false, err
	}
	c.fresh = manifest.NewSpool(s.config.Dir)
	c.writer.Out = c.fresh
	if err := m.rewrite(0, c.tree.Manifest.Size(), nil); err != nil {
		c.fresh.Close()
		return false, err
	}
	c.tree.Manifest.Close()
	c.tree.Manifest = c.fresh
	return true, c.finish()
}

// find looks for the candidates in the manifest.
func (m *mover) find(candidates map[manifest.Inode]compare.Candidate) error {
	var (
		in       = m.tree.Manifest.Frames()
		way      = manifest.NewWay()
		replaced = make(map[string]bool)
		seen     = make(map[manifest.Inode]bool)
		inside   []*piece
		part     manifest.Frame
	)
	for _, n := range candidates {
		if n.Replaces {
			replaced[n.Path] = true
		}
	}
	for {
		err := in.Next(&part)
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return err
		}
		for n := len(inside) - 1; n >= 0 && (end || part.First && part.Depth <= inside[n].depth); n-- {
			inside[n].end = part.Offset
			inside = inside[:n]
		}
		if end {
			return nil
		}
		path := way.To(&part)
		if !part.First || part.Depth == 0 {
			continue
		}
		key := part.Self.Stamp.Inode()
		p := &piece{from: path, depth: part.Depth, start: part.Offset}
		if n, ok := candidates[key]; ok && n.Path != path && !seen[key] {
			seen[key] = true
			p.to, p.replaces = n.Path, n.Replaces
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
			err = m.out.Remove(name)
		} else {
			m.tree.numbers++
			p.number = m.tree.numbers
			err = m.out.Park(name, p.number)
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
		if err := m.out.PlaceDirectory(p.number, lastName(p.to)); err != nil {
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
		in      = &manifest.Frames{In: m.tree.Manifest.Reader(start, end)}
		way     = manifest.NewWay()
		part    manifest.Frame
		base    int
		waiting []*piece
	)
	if moved != nil {
		base = moved.depth
	}
	for {
		err := in.Next(&part)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if p := m.starts[part.Offset]; p != nil && p != moved {
			in = &manifest.Frames{In: m.tree.Manifest.Reader(p.end, end)}
			if p.to == "" {
				if err := m.unnamePiece(p); err != nil {
					return err
				}
			}
			continue
		}
		part.Depth -= base
		old := way.To(&part)
		if moved != nil {
			old = strings.TrimSuffix(manifest.Joined(moved.from, old), "/")
			if part.Depth == 0 {
				part.Name = lastName(moved.to)
			}
			part.Depth += depthOf(moved.to)
		} else if part.First {
			waiting = m.comes[old]
		}
		if waiting, err = m.frame(&part, m.leaves[old], waiting); err != nil {
			return err
		}
		if !part.Last || moved != nil {
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
func (m *mover) frame(part *manifest.Frame, gone map[string]bool, waiting []*piece) ([]*piece, error) {
	m.writer.Begin(part)
	old := manifest.KnownReader{Unread: part.Entries}
	var entry manifest.Known
	for {
		raw, ok := old.Next(&entry)
		for len(waiting) > 0 && (ok && lastName(waiting[0].to) <= entry.Name || !ok && part.Last) {
			if err := m.writer.Add(&manifest.Known{Name: lastName(waiting[0].to),
				Directory: true}); err != nil {
				return nil, err
			}
			waiting = waiting[1:]
		}
		if !ok {
			return waiting, m.writer.End()
		}
		if entry.Directory && gone[entry.Name] {
			continue
		}
		if err := m.writer.Raw(raw); err != nil {
			return nil, err
		}
	}
}

// unnamePiece handles a directory that was removed, except what was moved out of it.
func (m *mover) unnamePiece(removed *piece) error {
	in := &manifest.Frames{In: m.tree.Manifest.Reader(removed.start, removed.end)}
	var part manifest.Frame
	for {
		err := in.Next(&part)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if p := m.starts[part.Offset]; p != nil && p != removed {
			in = &manifest.Frames{In: m.tree.Manifest.Reader(p.end, removed.end)}
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
