package inodes

import (
	"encoding/binary"
	"slices"
	"strings"
)

// format is a kind of file whose inode programs remember.
type format struct {
	name   string
	prefix string // how its content begins
	suffix string // of a companion's name: it is not named beside the file that it belongs to
}

// formats are the known formats. A program belongs here if it malfunctions once a file that it has open
// gets another inode.
var formats = []format{
	{name: "SQLite database", prefix: "SQLite format 3\x00"}, // sqlite.org/fileformat2.html, section 1.3
	// An encrypted database does not begin like others, but its index does (sqlite.org/walformat.html,
	// section 2.1). SQLite has the index open as long as it has it mapped.
	{name: "index of an SQLite database in WAL mode", prefix: walIndex(), suffix: "-shm"},
}

// walIndex is the index's version, in the byte order of the machine, and four bytes that are not used.
func walIndex() string {
	return string(append(binary.NativeEndian.AppendUint32(nil, 3007000), 0, 0, 0, 0))
}

// longestPrefix is how much of a file has to be read.
const longestPrefix = 16

// formatOf finds the format of a file that begins with head.
func formatOf(head []byte) (format, bool) {
	i := slices.IndexFunc(formats, func(f format) bool { return strings.HasPrefix(string(head), f.prefix) })
	if i < 0 {
		return format{}, false
	}
	return formats[i], true
}
