package criu

import "testing"

// TestAbort gives up a dump twenty times in a row: an established connection works on.
func TestAbort(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	client.count()
	for range 20 {
		run, release := c.dump()
		n := c.abort()
		client.count()
		t.Logf("run %v release %v repaired %d", run, release, n)
		c.emptyImages()
	}
}
