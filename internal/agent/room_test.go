package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

func TestTravelling(t *testing.T) {
	for status, want := range map[string]int64{
		"": 0,
		"Name:\tredis\nVmRSS:\t  300 kB\nRssAnon:\t     100 kB\nRssFile:\t     170 kB\nRssShmem:\t      " +
			"30 kB\nVmSwap:\t      10 kB\n": 140 << 10,
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
		found, err := a.examineRoom("a", engine.Definition{}, offer)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := room(); len(found) > 0 {
		t.Fatalf("no room for 1 MiB: %+v", found)
	}
	a.reservations.Fill(testMigration, "a", 1<<60, 1<<61)
	if found := room(); len(found) > 0 {
		t.Errorf("its own promise stands against it: %+v", found)
	}
	a.reservations.Fill("another", "c", 1<<60, 1<<61)
	if found := room(); len(found) != 1 {
		t.Errorf("found %+v, want that there is no room", found)
	}
	a.reservations.Release("another")
	if found := room(); len(found) > 0 {
		t.Errorf("a promise that was taken back stands against it: %+v", found)
	}
}

// TestOneNodeCannotReserveAllMemory: containers that come from one node at the same time leave a
// quarter of the memory to those of others. A single one may take what is free. A staged copy
// counts, but not for the container of which it is a copy.
func TestOneNodeCannotReserveAllMemory(t *testing.T) {
	const gib = 1 << 30
	a := newTestAgent(t)
	share := func(node string, needed int64) []migration.Problem {
		return a.examineShare(node, testMigration, needed, []string{"staged"})
	}
	quarters := func(free int64) int64 { return max(free, a.freeForContainers()) / 4 * 3 }
	const much = 1 << 50 // more than this machine has
	if found := share("a", 8*gib); len(found) > 0 {
		t.Errorf("a single container: %+v", found)
	}
	a.reservations.Fill("staged", "a", much, much)
	if found := share("a", 8*gib); len(found) > 0 {
		t.Errorf("beside its own staged copy: %+v", found)
	}
	if found := a.examineShare("a", testMigration, 8*gib, nil); len(found) != 1 {
		t.Errorf("beside the staged copy of another: %+v", found)
	}
	a.reservations.Fill("first", "a", 4*gib, much)
	if found := share("a", quarters(much)-4*gib); len(found) > 0 {
		t.Errorf("three quarters of the memory: %+v", found)
	}
	found := share("a", quarters(much)-4*gib+1)
	if len(found) != 1 || !strings.Contains(found[0].Why,
		fmt.Sprintf("may reserve %d MiB", quarters(much)>>20)) ||
		!strings.Contains(found[0].Remedy, "max_memory_per_node_bytes") {
		t.Errorf("more than three quarters of the memory: %+v", found)
	}
	if found := share("c", 8*gib); len(found) > 0 {
		t.Errorf("another node: %+v", found)
	}
	a.reservations.Fill(testMigration, "a", much, much)
	a.reservations.Fill("later", "a", much, much)
	if found := share("a", gib); len(found) > 0 {
		t.Errorf("one that came later stands in the way: %+v", found)
	}
	a.reservations.Release("later")
	a.config.Policy.MaxMemoryPerNodeBytes = 2 * gib
	if found := share("c", 2*gib+1); len(found) != 1 {
		t.Errorf("more than the policy allows: %+v", found)
	}
	a.config.Policy.MaxMemoryPerNodeBytes = 0
	a.reservations.Release("first")
	a.reservations.Release("staged")
	a.reservations.Fill(testMigration, "a", 0, 6*gib)
	if reserved, free := a.reservations.PromisedTo("a", "another"); reserved != 0 || free != 0 {
		t.Errorf("when all have arrived %d bytes are reserved, of %d", reserved, free)
	}
}
