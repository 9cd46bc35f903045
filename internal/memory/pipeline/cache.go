package pipeline

import "github.com/godwit/godwit/internal/memory"

// cache keeps the content of pages as the receiver has it, to make deltas to.
//
// It is worthwhile for pages that are written again and again, and rounds send them in much the same order.
// With more such pages than room, dropping the least recently used page would always drop the next one
// needed. So pages that were sent again in this round or the last one stay, and pages that find no room are
// not kept. Pages that are expected to be sent again replace others that were sent once.
type cache struct {
	limit   int // of pages
	slots   map[pageID]uint32
	owner   []pageID // of a slot
	used    []uint32 // round in which a slot was last rewritten; 0: never
	blocks  [][]byte // of the content
	free    []uint32
	hand    int  // where to look for a page that need not stay, …
	once    int  // …and for one that was sent once
	noRoom  bool // in this round
	size    int  // of a page
	rounds  uint32
	blocked int // slots that a search examined in vain
}

// cacheBlock is how many pages of the cache are allocated together.
const cacheBlock = 64

func newCache(bytes int64) *cache {
	return &cache{limit: int(bytes / int64(memory.PageSize())), slots: map[pageID]uint32{},
		size: memory.PageSize(), rounds: 1}
}

// next begins a round.
func (c *cache) next() { c.rounds, c.noRoom, c.blocked = c.rounds+1, false, 0 }

// get returns the content of a page, which is valid until the next call; nil: it is not kept.
func (c *cache) get(id pageID) []byte {
	slot, kept := c.slots[id]
	if !kept {
		return nil
	}
	return c.content(slot)
}

func (c *cache) content(slot uint32) []byte {
	at := int(slot%cacheBlock) * c.size
	return c.blocks[slot/cacheBlock][at : at+c.size]
}

// keep stores what was sent of a page, if there is room. again means that the page was sent before, soon
// that it will be again.
func (c *cache) keep(id pageID, content []byte, again, soon bool) {
	slot, kept := c.slots[id]
	if !kept {
		if slot, kept = c.room(again, soon); !kept {
			return
		}
		c.slots[id], c.owner[slot] = slot, id
	}
	c.used[slot] = 0
	if again {
		c.used[slot] = c.rounds
	}
	copy(c.content(slot), content)
}

// touch records that a page was rewritten with the same content.
func (c *cache) touch(id pageID) {
	if slot, kept := c.slots[id]; kept {
		c.used[slot] = c.rounds
	}
}

// drop forgets a page.
func (c *cache) drop(id pageID) {
	if slot, kept := c.slots[id]; kept {
		delete(c.slots, id)
		c.free = append(c.free, slot)
	}
}

// room finds a slot. Other pages are evicted only for pages that were sent again, or will be soon.
func (c *cache) room(again, soon bool) (uint32, bool) {
	if n := len(c.free); n > 0 {
		slot := c.free[n-1]
		c.free = c.free[:n-1]
		return slot, true
	}
	if n := len(c.owner); n < c.limit {
		if n%cacheBlock == 0 {
			c.blocks = append(c.blocks, make([]byte, min(cacheBlock, c.limit-n)*c.size))
		}
		c.owner, c.used = append(c.owner, 0), append(c.used, 0)
		return uint32(n), true
	}
	if soon && !again {
		return c.replaceOnce()
	}
	if !again || c.noRoom {
		return 0, false
	}
	for ; c.blocked < len(c.owner); c.blocked++ {
		slot := uint32(c.hand)
		if c.hand++; c.hand == len(c.owner) {
			c.hand = 0
		}
		if c.used[slot]+1 < c.rounds {
			c.blocked++
			delete(c.slots, c.owner[slot])
			return slot, true
		}
	}
	c.noRoom = true
	return 0, false
}

// onceTries is how many slots are examined for a page that was sent once.
const onceTries = 16

// replaceOnce finds the slot of the page that was sent once, the longest ago.
func (c *cache) replaceOnce() (uint32, bool) {
	for range min(onceTries, len(c.owner)) {
		slot := uint32(c.once)
		if c.once++; c.once == len(c.owner) {
			c.once = 0
		}
		if c.used[slot] == 0 {
			delete(c.slots, c.owner[slot])
			return slot, true
		}
	}
	return 0, false
}
