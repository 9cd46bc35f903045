// Package dump reads lists of devices, addresses, routes and rules again that changed while the
// kernel wrote them.
//
// A long list takes several messages of netlink. If something changes in between, the kernel marks
// the list as interrupted (NLM_F_DUMP_INTR, include/uapi/linux/netlink.h): entries may be missing
// or outdated. That is common on a machine on which other programs start containers.
package dump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// maxTries is how often a list is read.
const maxTries = 50

// Whole calls list until the kernel gives the list without interruption, at most 50 times. Errors: those of
// list; netlink.ErrDumpInterrupted, beside the last list, in which entries may be missing.
func Whole[T any](list func() ([]T, error)) ([]T, error) {
	for tries := 1; ; tries++ {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || tries == maxTries {
			return all, err
		}
	}
}
