package agent

import (
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

func TestTravelling(t *testing.T) {
	for status, want := range map[string]int64{
		"": 0,
		"Name:\tredis\nVmRSS:\t  300 kB\nRssAnon:\t     100 kB\nRssFile:\t     170 kB\nRssShmem:\t      30 kB\nVmSwap:\t      10 kB\n": 140 << 10,
		"RssAnon:\t-5 kB\nRssShmem:\tx kB\nVmSwap:": 0,
	} {
		if got := travelling(status); got != want {
			t.Errorf("%q: %d bytes, want %d", status, got, want)
		}
	}
}

// TestRoomIsPromisedOnce: two containers that come at once do not both get the same memory.
func TestRoomIsPromisedOnce(t *testing.T) {
	a := newTestAgent(t)
	offer := &api.Offer{Migration: testMigration, MemoryBytes: 1 << 20}
	room := func() []migration.Problem {
		t.Helper()
		found, err := a.examineRoom(engine.Definition{}, offer)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := room(); len(found) > 0 {
		t.Fatalf("no room for 1 MiB: %+v", found)
	}
	a.reservations.fill(testMigration, 1<<60)
	if found := room(); len(found) > 0 {
		t.Errorf("its own promise stands against it: %+v", found)
	}
	a.reservations.fill("another", 1<<60)
	if found := room(); len(found) != 1 {
		t.Errorf("found %+v, want that there is no room", found)
	}
	a.reservations.release("another")
	if found := room(); len(found) > 0 {
		t.Errorf("a promise that was taken back stands against it: %+v", found)
	}
}
