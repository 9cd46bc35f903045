package files

import (
	"strings"
	"sync"
)

// candidates are directories that may have been moved: the mirror has no directory, or another one, in
// their places.
type candidates struct {
	mu    sync.Mutex
	found map[inode]candidate
}

type candidate struct {
	path     string
	replaces bool // the mirror has another directory there
}

// candidatesMost and candidatesLongest bound memory. Directories beyond these limits are sent again.
const (
	candidatesMost    = 4096
	candidatesLongest = 4096 // bytes: PATH_MAX
)

func (c *candidates) add(key inode, path string, replaces bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil {
		c.found = make(map[inode]candidate)
	}
	if len(c.found) < candidatesMost && len(path) <= candidatesLongest {
		c.found[key] = candidate{strings.Clone(path), replaces}
	}
}
