// Package dump repeats lists of devices, addresses, routes and rules that the kernel could not give in one piece.
//
// A long list takes several messages of netlink. If something changes in between, the kernel marks the list as
// interrupted (NLM_F_DUMP_INTR, include/uapi/linux/netlink.h): entries may be missing or outdated. On a machine on which
// other programs start containers that is usual.
package dump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// maxTries is how often a list is asked for. Each try takes well under a millisecond.
const maxTries = 50

// Whole returns the list when it was not interrupted. Error: that of the list; netlink.ErrDumpInterrupted if the list
// kept changing, with its last state, in which entries may be missing.
func Whole[T any](list func() ([]T, error)) ([]T, error) {
	for tries := 1; ; tries++ {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || tries == maxTries {
			return all, err
		}
	}
}
