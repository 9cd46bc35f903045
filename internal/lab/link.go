package lab

import (
	"errors"
	"fmt"
)

// Link returns the properties of the link between two nodes, or a client and its node.
func (l *Lab) Link(a, b string) (Link, error) {
	s, err := loadState(l.name)
	if err != nil {
		return Link{}, err
	}
	w, err := s.wire(a, b)
	if err != nil {
		return Link{}, err
	}
	return w.Link, nil
}

// SetLink changes a link while it is used. Connections over it survive, unless it is down for longer than
// they tolerate.
func (l *Lab) SetLink(a, b string, shape Link) error {
	return l.ChangeLink(a, b, func(link *Link) { *link = shape })
}

// ChangeLink changes some properties of a link.
func (l *Lab) ChangeLink(a, b string, change func(*Link)) error {
	return l.update(func(s *state) error {
		w, err := s.wire(a, b)
		if err != nil {
			return err
		}
		shape := w.Link
		change(&shape)
		if err := shape.validate(); err != nil {
			return err
		}
		if measurable(shape) != measurable(w.Link) {
			w.Check = nil // the measurement is no longer valid
		}
		w.Link = shape
		ends, err := s.ends(w)
		if err != nil {
			return err
		}
		if err := s.wiring().set(w, ends); err != nil {
			return fmt.Errorf("link %s-%s: %w", w.A, w.B, err)
		}
		return errors.Join(setBurstSize(ends[0], shape), setBurstSize(ends[1], shape))
	})
}

// measurable returns the properties on which a measurement depends.
func measurable(l Link) Link {
	l.Down = false
	return l
}

// LinkDown takes a link down: packets are dropped silently, including those under way.
func (l *Lab) LinkDown(a, b string) error {
	return l.ChangeLink(a, b, func(link *Link) { link.Down = true })
}

// LinkUp takes a link up again, as it was before.
func (l *Lab) LinkUp(a, b string) error {
	return l.ChangeLink(a, b, func(link *Link) { link.Down = false })
}

// LinkCounters returns the traffic of a link, from a to b and from b to a, since it was made.
func (l *Lab) LinkCounters(a, b string) (there, back Counters, err error) {
	s, err := loadState(l.name)
	if err != nil {
		return there, back, err
	}
	w, err := s.wire(a, b)
	if err != nil {
		return there, back, err
	}
	ends, err := s.ends(w)
	if err != nil {
		return there, back, err
	}
	both, err := s.wiring().counters(w, ends)
	if w.A == b {
		return both[1], both[0], err
	}
	return both[0], both[1], err
}
