package residual

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// Copies are residual copies by container. Nothing depends on them, so each can be given up at any time: they
// only save sending the same contents again.
type Copies struct {
	limit int64 // of all together; 0: a share of what is available when one is made
	// file makes a file for the pages of a copy.
	file func(path string) (*os.File, error)

	mu  sync.Mutex
	all map[string]*Copy
}

// Copy is the residual memory copy of one container.
type Copy struct {
	of         Origin
	pages      *memory.Residual
	incomplete bool // there was no room for all pages, or not all had arrived

	mu      sync.Mutex
	until   time.Time
	users   int  // migrations that refer to it
	dropped bool // to be closed when its last user is done
}

// Origin says what a copy is made of.
type Origin struct {
	ID          string // of the migration by which the container left, or of the stage
	Container   string // its name
	ContainerID string
	Peer        string // where the container went, or the node that staged it
	Node        string // this one
	Started     time.Time
	Fresh       time.Time // the memory is as it was then
	Idle        bool      // an idle copy: it was staged, and the container was never here
	Partial     bool      // not all has arrived
}

// Config of residual copies.
type Config struct {
	Limit int64 // of all copies together; 0: a share of the memory that is available when a copy is made
	// File makes a file for the pages of a copy; nil: in memory that is not swapped, which takes root.
	File func(path string) (*os.File, error)
}

// New has no copies yet.
func New(c Config) *Copies {
	if c.File == nil {
		c.File = unswappedFile
	}
	return &Copies{limit: c.Limit, file: c.File, all: map[string]*Copy{}}
}

// share is the share of the available memory that copies may take, unless the operator has set a limit.
const share = 4

// room drops the oldest copies to make room for a new one of that many bytes, unless it would not fit
// even alone, and returns how much memory the new copy may take. there is the part of its bytes that is
// in memory already and is given back while the copy is made.
func (c *Copies) room(bytes, there int64) (int64, error) {
	available, err := kernel.MemoryAvailable()
	if err != nil {
		return 0, err
	}
	available += there
	limit := available / share
	if c.limit > 0 {
		limit = min(c.limit, available/2)
	}
	for bytes <= limit && c.Bytes()+bytes > limit && c.DropOldest() {
		continue
	}
	return max(0, limit-c.Bytes()), nil
}

// Add keeps a copy, and drops an older copy of the same container.
func (c *Copies) Add(added *Copy) {
	c.Drop(added.of.ContainerID)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[added.of.ContainerID] = added
}

// Use returns the copy of a container, which stays until the user releases it. Nil: there is none.
func (c *Copies) Use(container string) *Copy {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.all[container]
	if entry == nil {
		return nil
	}
	entry.mu.Lock()
	defer entry.mu.Unlock()
	entry.users++
	return entry
}

// Release ends a use. It does nothing for nil.
func (c *Copy) Release() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
	c.closeUnused()
}

// closeUnused gives back the memory of a copy that was dropped and has no users. The caller holds the lock.
func (c *Copy) closeUnused() {
	if c.dropped && c.users == 0 {
		_ = c.pages.Close() // a file in memory: there is nothing that could fail
	}
}

// Drop forgets the copy of a container, and reports whether there was one.
func (c *Copies) Drop(container string) bool {
	c.mu.Lock()
	entry := c.all[container]
	delete(c.all, container)
	c.mu.Unlock()
	if entry == nil {
		return false
	}
	entry.mu.Lock()
	defer entry.mu.Unlock()
	entry.dropped = true
	entry.closeUnused()
	return true
}

// DropOldest forgets the copy that was made first, and reports whether there was one.
func (c *Copies) DropOldest() bool {
	list := c.List()
	return len(list) > 0 && c.Drop(list[0].of.ContainerID)
}

// List has all copies, in the order in which they were made.
func (c *Copies) List() []*Copy {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*Copy, 0, len(c.all))
	for _, entry := range c.all {
		list = append(list, entry)
	}
	slices.SortFunc(list, func(a, b *Copy) int { return a.of.Started.Compare(b.of.Started) })
	return list
}

// Bytes is the memory that all copies take.
func (c *Copies) Bytes() (bytes int64) {
	for _, entry := range c.List() {
		bytes += entry.pages.Bytes()
	}
	return bytes
}

// Yield gives up copies, oldest first, until so many bytes are free.
func (c *Copies) Yield(bytes int64) {
	for bytes > 0 {
		list := c.List()
		if len(list) == 0 {
			return
		}
		bytes -= list[0].pages.Bytes()
		c.Drop(list[0].of.ContainerID)
	}
}

// Expire forgets copies whose time is over.
func (c *Copies) Expire(now time.Time) {
	for _, entry := range c.List() {
		if now.After(entry.expires()) {
			c.Drop(entry.of.ContainerID)
		}
	}
}

// Extend lets the copy of a container stay at least until then. Nil: there is none.
func (c *Copies) Extend(container string, until time.Time) *Copy {
	c.mu.Lock()
	entry := c.all[container]
	c.mu.Unlock()
	if entry == nil {
		return nil
	}
	entry.mu.Lock()
	defer entry.mu.Unlock()
	if until.After(entry.until) {
		entry.until = until
	}
	return entry
}

// Holds tells how much memory of a container is here, and as of when; no time: the copy is not whole.
func (c *Copies) Holds(container string) (bytes int64, fresh time.Time, there bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.all[container]
	if entry == nil {
		return 0, time.Time{}, false
	}
	if !entry.incomplete {
		fresh = entry.of.Fresh
	}
	return entry.pages.Bytes(), fresh, true
}

// Remove drops the copy of a container that a user means, and whose peer is a node. It reports whether there
// was one.
func (c *Copies) Remove(reference, node string) bool {
	for _, entry := range c.List() {
		if entry.of.Peer == node && migration.Called(reference, entry.of.ContainerID, entry.of.Container) {
			c.Drop(entry.of.ContainerID) // if it has just expired, it is gone as well
			return true
		}
	}
	return false
}

// Pages are what can be referred to, until the copy is released.
func (c *Copy) Pages() *memory.Residual { return c.pages }

// Bytes is the memory that the copy takes.
func (c *Copy) Bytes() int64 { return c.pages.Bytes() }

// Whole reports whether all of the container's memory is in the copy.
func (c *Copy) Whole() bool { return !c.incomplete }

func (c *Copy) expires() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until
}

// Describe tells of the copy.
func (c *Copy) Describe() migration.Stage {
	told := migration.Stage{
		ID: c.of.ID, Kind: migration.Residual, Container: c.of.Container, ContainerID: c.of.ContainerID,
		Source: c.of.Peer, Target: c.of.Node, State: migration.StageReady, Started: c.of.Started,
		Fresh: c.of.Fresh, Until: c.expires(), Rounds: 1, MemoryBytes: c.pages.Bytes(),
	}
	if c.of.Idle {
		told.Kind, told.State = migration.StagedCopy, migration.StageIdle
	}
	return told
}
