package pipeline

import (
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

// TestCacheKeepsWhatIsExpected: pages that are expected to be sent again replace other pages, but not those
// that were sent again.
func TestCacheKeepsWhatIsExpected(t *testing.T) {
	const room = 8
	size := memory.PageSize()
	c := newCache(int64(room * size))
	page := func(id pageID) []byte {
		content := make([]byte, size)
		content[0] = byte(id)
		return content
	}
	for id := range pageID(2 * room) {
		c.keep(id, page(id), false, id >= room)
	}
	for id := range pageID(2 * room) {
		if kept := c.get(id); (kept != nil) != (id >= room) || kept != nil && kept[0] != byte(id) {
			t.Errorf("page %d: %v", id, kept != nil)
		}
	}
	again := pageID(room + 1)
	c.keep(again, page(100), true, false)
	c.drop(room + 2)
	for id := range pageID(4 * room) {
		c.keep(1000+id, page(id), false, true)
		if kept := c.get(again); kept == nil || kept[0] != 100 {
			t.Fatalf("a page that was sent again is lost after %d others", id)
		}
		if len(c.slots) > room {
			t.Fatalf("%d pages are kept", len(c.slots))
		}
	}
	for id := range pageID(room - 1) {
		if kept := c.get(1000 + 4*room - 1 - id); kept == nil {
			t.Errorf("the page before the last %d is not kept", id)
		}
	}
}
