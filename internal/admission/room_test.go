package admission

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/reserve"
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
	a, book := newNode(t), reserve.New()
	a.memory.Reservations = book
	offer := &api.Offer{Migration: migrationID, MemoryBytes: 1 << 20}
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
	book.Fill(migrationID, "a", 1<<60, 1<<61)
	if found := room(); len(found) > 0 {
		t.Errorf("its own promise stands against it: %+v", found)
	}
	book.Fill("another", "c", 1<<60, 1<<61)
	if found := room(); len(found) != 1 {
		t.Errorf("found %+v, want that there is no room", found)
	}
	book.Release("another")
	if found := room(); len(found) > 0 {
		t.Errorf("a promise that was taken back stands against it: %+v", found)
	}
}

// TestOneNodeCannotReserveAllMemory: containers that come from one node at the same time leave a
// quarter of the memory to those of others. A single one may take what is free. A staged copy
// counts, but not for the container of which it is a copy.
func TestOneNodeCannotReserveAllMemory(t *testing.T) {
	const gib = 1 << 30
	a, book := newNode(t), reserve.New()
	a.memory.Reservations = book
	share := func(node string, needed int64) []migration.Problem {
		return a.examineShare(node, migrationID, needed, []string{"staged"})
	}
	quarters := func(free int64) int64 { return max(free, a.Free()) / 4 * 3 }
	const much = 1 << 50 // more than this machine has
	if found := share("a", 8*gib); len(found) > 0 {
		t.Errorf("a single container: %+v", found)
	}
	book.Fill("staged", "a", much, much)
	if found := share("a", 8*gib); len(found) > 0 {
		t.Errorf("beside its own staged copy: %+v", found)
	}
	if found := a.examineShare("a", migrationID, 8*gib, nil); len(found) != 1 {
		t.Errorf("beside the staged copy of another: %+v", found)
	}
	book.Fill("first", "a", 4*gib, much)
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
	book.Fill(migrationID, "a", much, much)
	book.Fill("later", "a", much, much)
	if found := share("a", gib); len(found) > 0 {
		t.Errorf("one that came later stands in the way: %+v", found)
	}
	book.Release("later")
	a.rules.Policy.MaxMemoryPerNodeBytes = 2 * gib
	if found := share("c", 2*gib+1); len(found) != 1 {
		t.Errorf("more than the policy allows: %+v", found)
	}
	a.rules.Policy.MaxMemoryPerNodeBytes = 0
	book.Release("first")
	book.Release("staged")
	book.Fill(migrationID, "a", 0, 6*gib)
	if reserved, free := book.PromisedTo("a", "another"); reserved != 0 || free != 0 {
		t.Errorf("when all have arrived %d bytes are reserved, of %d", reserved, free)
	}
}

// TestResidualsYield: memory that containers have left here is free for those that come.
func TestResidualsYield(t *testing.T) {
	for _, one := range []struct {
		memory, residual int64
		dryRun           bool
		problems         int
		yielded          int64
	}{
		{memory: 32 << 30},
		{memory: 33 << 30, problems: 1},
		{memory: 33 << 30, residual: 2 << 30, yielded: 2 << 30},
		{memory: 33 << 30, residual: 2 << 30, dryRun: true},
		{memory: 33 << 30, residual: 1 << 30, problems: 1},
	} {
		n := &node{residual: one.residual}
		found, err := newNodeWith(t, n).examineRoom("a", engine.Definition{},
			&api.Offer{MemoryBytes: one.memory, DryRun: one.dryRun})
		if err != nil || len(found) != one.problems || n.yielded != one.yielded {
			t.Errorf("%+v: %+v, %v; %d bytes yielded", one, found, err, n.yielded)
		}
	}
}

// TestOwnRoom: the state of a container that leaves has to fit beside the container.
func TestOwnRoom(t *testing.T) {
	a := newNode(t)
	for bytes, want := range map[int64]int{64 << 30: 0, 64<<30 + 1: 1} {
		if found := a.ExamineOwnRoom(&api.Offer{MemoryBytes: bytes}); len(found) != want {
			t.Errorf("%d bytes: %+v", bytes, found)
		}
	}
	a.memory.Available = func() (int64, error) { return 0, errFailed }
	if found := a.ExamineOwnRoom(&api.Offer{MemoryBytes: 1}); len(found) > 0 || a.Free() != 0 {
		t.Errorf("where nobody knows how much is free: %+v, %d", found, a.Free())
	}
}

// TestImageNeed: an engine that keeps images itself gets them by way of the spool.
func TestImageNeed(t *testing.T) {
	offer := &api.Offer{Layers: []*api.Layer{{DiffId: "one", ArchiveBytes: 10, StoredBytes: 4},
		{DiffId: "two", ArchiveBytes: 100, StoredBytes: 40}}}
	for _, one := range []struct {
		node node
		want int64
	}{
		{node{}, 154},
		{node{keepsImages: true}, 330},
		{node{keepsImages: true, images: []string{"two"}}, 30},
	} {
		if got, err := newNodeWith(t, &one.node).imageNeed(engine.Definition{}, offer); err != nil ||
			got != one.want {
			t.Errorf("%d bytes, %v; want %d", got, err, one.want)
		}
	}
	if _, err := newNodeWith(t, &node{lookup: errFailed}).examineRoom("a", engine.Definition{},
		offer); !errors.Is(err, errFailed) {
		t.Errorf("of an engine that is not there: %v", err)
	}
}
