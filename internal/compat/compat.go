// Package compat says which versions of godwit work together: the migration protocol that two agents
// agree on. It is pure; agents exchange ranges in hello, and every offer names the version agreed on.
//
// A release speaks the protocol of the release before it, so that a cluster is upgraded, or rolled
// back, node by node while containers move. RELEASES lists the releases, and test/upgrade runs the
// previous one against this tree.
package compat

import (
	"errors"
	"fmt"
)

// The versions of the migration protocol that this program speaks. Raise newest when two versions
// would misunderstand each other, keep what the previous release speaks, and drop what came before it.
const (
	oldest = 9
	newest = 9
)

// ErrIncompatible is the error for nodes that have no protocol version in common.
var ErrIncompatible = errors.New("incompatible versions of godwit")

// Range is what one node speaks: all versions from Oldest to Newest. The zero value is that of a node
// that has not said: it was built before v0.1.0, or has not been heard yet.
type Range struct{ Oldest, Newest int }

// Ours is what this program speaks.
func Ours() Range { return Range{Oldest: oldest, Newest: newest} }

// Speaks tells whether a version is in the range.
func (r Range) Speaks(version int) bool {
	return version >= r.Oldest && version <= r.Newest && version > 0
}

func (r Range) String() string {
	switch {
	case r == Range{}:
		return "an unknown version"
	case r.Oldest == r.Newest:
		return fmt.Sprintf("version %d", r.Newest)
	}
	return fmt.Sprintf("versions %d to %d", r.Oldest, r.Newest)
}

// Agree returns the newest version that both speak. theirs comes from another node and is not trusted.
func Agree(ours, theirs Range) (int, error) {
	version := min(ours.Newest, theirs.Newest)
	if !ours.Speaks(version) || !theirs.Speaks(version) {
		return 0, fmt.Errorf("%w: one node speaks %s of the migration protocol, the other %s: %s",
			ErrIncompatible, ours, theirs, remedy(ours, theirs))
	}
	return version, nil
}

func remedy(ours, theirs Range) string {
	if theirs.Newest < ours.Oldest {
		return "upgrade the other node; nodes may be one release apart"
	}
	return "upgrade this node; nodes may be one release apart"
}
