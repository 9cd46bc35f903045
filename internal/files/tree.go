package files

import (
	"os"
	"slices"
)

// TreeKind is the purpose of a directory that moves with a container.
type TreeKind string

// The kinds of trees that make up a container's state.
const (
	Writable TreeKind = "writable" // upper directory of its overlay, with whiteouts and opaque directories
	VolumeOf TreeKind = "volume"   // a named volume
	// a directory in memory that the engine binds into the container, such as /dev/shm
	Memory  TreeKind = "memory"
	Private TreeKind = "private" // the engine's own files for this container: hosts, resolv.conf, log
)

// Tree is a directory on this node that makes up part of a container.
type Tree struct {
	Kind TreeKind
	Name string // of the volume; empty otherwise
	Path string // absolute
	// Held is the target of Path, if Path is valid only while it is open; see LetGo.
	Held *os.File
}

// Without returns the trees that are not unwanted, in the same slice. It lets go of the others.
func Without(trees []Tree, unwanted func(Tree) bool) []Tree {
	return slices.DeleteFunc(trees, func(tree Tree) bool {
		if !unwanted(tree) {
			return false
		}
		LetGo([]Tree{tree})
		return true
	})
}

// LetGo releases trees that have been opened, or are not needed: the paths of held trees become invalid.
func LetGo(trees []Tree) {
	for _, tree := range trees {
		if tree.Held != nil {
			_ = tree.Held.Close() // it was only read
		}
	}
}
