package criu

import "errors"

// Unrepair takes every TCP socket of the given processes that a dump left in repair mode out of it, so that it works
// again when the processes are thawed, and returns how many there were. Call it while they are frozen.
func Unrepair(pids []int) (int, error) { return 0, errors.ErrUnsupported }

// RemoveLinkRemaps removes the names that a dump gave to deleted but open files (link_remap.N), below each of the
// given directories, and returns how many there were.
func RemoveLinkRemaps(roots []string) (int, error) { return 0, errors.ErrUnsupported }
