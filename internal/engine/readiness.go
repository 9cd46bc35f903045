package engine

import (
	"slices"
	"strconv"
	"strings"
)

// Readiness is what an engine of this node lacks to take containers that move here.
type Readiness struct {
	Title    string // the engine's name for people
	Version  string
	Problems []Problem
}

// TooOld is what stands against an engine of a version before the oldest one with which containers
// were moved. One whose version is no numbers, as somebody's own build may have, is taken for new.
func TooOld(title, version, oldest string) []Problem {
	if Since(version, oldest) {
		return nil
	}
	return []Problem{{What: title + " " + version, Why: "it is older than " + oldest, Remedy: "update it"}}
}

// Since tells whether a version is this one or a later one, which it is if it is no numbers.
func Since(version, least string) bool {
	is := numbers(version)
	return len(is) == 0 || slices.Compare(is, numbers(least)) >= 0
}

// numbers are those with which a version begins: 1.6 of v1.6~ds1.
func numbers(version string) (all []int) {
	for part := range strings.SplitSeq(strings.TrimPrefix(version, "v"), ".") {
		digits := len(part) - len(strings.TrimLeft(part, "0123456789"))
		number, err := strconv.Atoi(part[:digits])
		if err != nil {
			return all
		}
		all = append(all, number)
		if digits < len(part) {
			return all
		}
	}
	return all
}
