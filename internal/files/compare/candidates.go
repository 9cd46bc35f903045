package compare

import (
	"strings"
	"sync"

	"github.com/godwit/godwit/internal/files/manifest"
)

// candidates are directories that may have been moved: the mirror has no directory, or another one, in
// their places.
type candidates struct {
	mu    sync.Mutex
	Found map[manifest.Inode]Candidate
}

// Candidate is where a directory that may have been moved is now.
type Candidate struct {
	Path     string
	Replaces bool // the mirror has another directory there
}

// candidatesMost and candidatesLongest bound memory. Directories beyond these limits are sent again.
const (
	candidatesMost    = 4096
	candidatesLongest = 4096 // bytes: PATH_MAX
)

func (c *candidates) add(key manifest.Inode, path string, replaces bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Found == nil {
		c.Found = make(map[manifest.Inode]Candidate)
	}
	if len(c.Found) < candidatesMost && len(path) <= candidatesLongest {
		c.Found[key] = Candidate{strings.Clone(path), replaces}
	}
}
