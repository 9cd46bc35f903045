package engine

import (
	"slices"
	"strconv"
	"strings"
)

// Readiness describes what an engine of this node lacks to receive containers.
type Readiness struct {
	Title    string // the engine's name for people
	Version  string
	Problems []Problem
}

// TooOld returns the problem of an engine older than the oldest version with which containers were moved. A
// version without numbers, such as a private build's, counts as new.
func TooOld(title, version, oldest string) []Problem {
	if Since(version, oldest) {
		return nil
	}
	return []Problem{{What: title + " " + version, Why: "it is older than " + oldest, Remedy: "update it"}}
}

// Since reports whether a version is this one or later. A version without numbers counts as later.
func Since(version, least string) bool {
	is := numbers(version)
	return len(is) == 0 || slices.Compare(is, numbers(least)) >= 0
}

// numbers returns the numbers at the beginning of a version: 1.6 of v1.6~ds1.
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
