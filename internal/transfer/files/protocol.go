package files

import "github.com/godwit/godwit/internal/files"

// Purpose is that of the data connection for rounds while the container runs.
const Purpose = "files"

// The sections of rounds. All but KindRound go over the connection for rounds only.
const (
	// KindRound has a round of copies.Source, in the freeze or before.
	KindRound  = "files"
	kindResume = "resume" // content: the source's chunk.Key; before all rounds
	// The other way:
	kindPlaced = "placed" // name: number of a round that is in place
	kindKept   = "kept"   // content: digests of files of an earlier attempt
)

// limits bound the disk that a source can fill that has offered files of so many bytes. Files are copied
// while the container writes, for as long as that takes, so they may grow by much.
func limits(offered int64) files.Limits {
	const least = 1 << 30
	// files may be empty; a disk has no more of them than one for some hundred bytes
	const entries, perEntry = 4 << 20, 512
	bytes := offered + offered/2 + least
	return files.Limits{Bytes: bytes, Entries: entries + bytes/perEntry}
}

// keptLimits bound what a target may tell of files that it has: some dozens of bytes for each of
// them, and for each piece of large ones.
func keptLimits(offered int64) files.Limits {
	const least, perByte = 1 << 30, 32
	most := limits(offered)
	most.Bytes = least + offered/perByte
	return most
}
