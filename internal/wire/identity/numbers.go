package identity

import (
	"fmt"
	"slices"
)

// span is a part of the numbers that nodes can have: those after Last, up to End.
type span struct {
	Last int `json:"last"`
	End  int `json:"end"`
}

func (s span) left() int { return max(s.End-s.Last, 0) }

func (s span) valid() bool { return s.Last >= 1 && s.Last <= s.End && s.End <= MaxNumber }

// end returns the highest number that this authority may assign now.
func (s *authorityState) end() int {
	if s.End < 1 || s.End > MaxNumber {
		return MaxNumber
	}
	return s.End
}

// observe records nodes that another authority has admitted, so that neither their names nor, after a
// restored backup of the state, their numbers are assigned again. It forgets nodes that have been removed.
func (s *authorityState) observe(known []Node, refused func(Peer) error) {
	for _, node := range known {
		peer := Peer{Name: node.Name, Number: node.Number}
		if node.Number > s.LastNumber && node.Number <= s.end() {
			s.LastNumber = node.Number
		}
		same := func(p Peer) bool { return p.Number == node.Number }
		if !slices.ContainsFunc(s.Nodes, same) {
			s.Nodes = append(s.Nodes, peer)
		}
	}
	s.Nodes = slices.DeleteFunc(s.Nodes, func(p Peer) bool { return refused(p) != nil })
}

// nextSpan makes sure that there is a number to assign.
func (s *authorityState) nextSpan() error {
	for s.LastNumber >= s.end() && len(s.Spare) > 0 {
		if next := s.Spare[0]; next.valid() {
			s.LastNumber, s.End = next.Last, next.End
		}
		s.Spare = s.Spare[1:]
	}
	if s.LastNumber >= s.end() {
		return fmt.Errorf("%w: a cluster can have had %d nodes in all; another node with the authority "+
			"may have some left",
			ErrClusterFull, MaxNumber)
	}
	return nil
}

// halve gives half of the remaining numbers to another authority: no two authorities ever have the same.
func (s *authorityState) halve() (span, error) {
	if err := s.nextSpan(); err != nil {
		return span{}, err
	}
	given := span{Last: (s.LastNumber + s.end()) / 2, End: s.end()}
	s.End = given.Last
	return given, nil
}

// takeBack takes over numbers that another authority has not assigned.
func (s *authorityState) takeBack(spans []span) {
	for _, one := range spans {
		if one.valid() && one.left() > 0 {
			s.Spare = append(s.Spare, one)
		}
	}
}

// rest returns all numbers that can still be assigned.
func (s *authorityState) rest() []span {
	return append([]span{{Last: s.LastNumber, End: s.end()}}, s.Spare...)
}
