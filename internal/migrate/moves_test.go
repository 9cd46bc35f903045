package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
)

// ended makes a migration that has ended, as the journal has it.
func ended(t *testing.T, a *node, number int, change func(*migration.Record)) string {
	t.Helper()
	id := fmt.Sprintf("%016x", number)
	record, err := migration.Banned(id, "a", "b", time.Unix(int64(number), 0))
	if err != nil {
		t.Fatal(err)
	}
	change(&record)
	if err := a.moves.newJournal(id, engine.Definition{}).Write(record); err != nil {
		t.Fatal(err)
	}
	a.recovery.One(id)
	if _, err := a.moves.Find(id); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestNamed finds migrations by the beginning of their ids, if no other begins so.
func TestNamed(t *testing.T) {
	a := newNode(t)
	for _, number := range []int{0x1a00, 0x1b00, 0x2a00} {
		ended(t, a, number, func(*migration.Record) {})
	}
	const zeros = "000000000000"
	for given, want := range map[string]string{
		zeros + "2": zeros + "2a00", zeros + "1a": zeros + "1a00", zeros + "1b00": zeros + "1b00",
		zeros + "1": "", zeros + "3": "",
		"": "", zeros + "1a000": "", "2a": "",
	} {
		found, err := a.moves.Named(given)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q is %s", given, found.Tracker.Spec.ID)
		case want != "" && (err != nil || found.Tracker.Spec.ID != want):
			t.Errorf("%q: %v", given, err)
		}
	}
}

// TestPruneKeepsDecisions: who was decided about by an operator may be asked about by the other
// node at any time.
func TestPruneKeepsDecisions(t *testing.T) {
	a := newNode(t)
	overruled := ended(t, a, 1, func(r *migration.Record) { r.Overruled = true })
	resolved := ended(t, a, 2, func(r *migration.Record) { r.Resolved, r.Result = true, migration.Moved })
	plain := ended(t, a, 3, func(*migration.Record) {})
	for number := range keepMoves {
		ended(t, a, 100+number, func(*migration.Record) {})
	}
	a.moves.prune()
	for _, id := range []string{overruled, resolved} {
		if _, err := a.moves.Find(id); err != nil {
			t.Errorf("a decision is forgotten: %v", err)
		}
	}
	if _, err := a.moves.Find(plain); err == nil {
		t.Error("nothing is ever forgotten")
	}
	if _, err := os.Stat(a.moves.Dir(plain)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}

// TestOneNodeCannotPushOutReports: whatever number of migrations a node makes this one remember, those with
// other nodes stay.
func TestOneNodeCannotPushOutReports(t *testing.T) {
	a := newNode(t)
	const few = 20
	for number := range few {
		ended(t, a, number, func(r *migration.Record) { r.Spec.Source = "c" })
	}
	for number := range keepMoves + 10 {
		ended(t, a, 100+number, func(r *migration.Record) { r.Spec.Source = "hostile" })
	}
	a.moves.prune()
	kept := map[string]int{}
	for _, m := range a.moves.List() {
		kept[m.Record().Spec.Source]++
	}
	if kept["c"] != few || kept["hostile"] != keepMoves-few {
		t.Errorf("kept: %v", kept)
	}
}

// TestOneNodeCannotTakeAllPlaces: a node that offers, or stages, as many containers as it may leaves others
// theirs.
func TestOneNodeCannotTakeAllPlaces(t *testing.T) {
	a := newNode(t)
	offer := func(source string, number int) error {
		id := fmt.Sprintf("%016x", number)
		machine, err := migration.New(migration.Spec{
			ID: id, Side: migration.Target, Container: fmt.Sprintf("%064x", number), Name: "web",
			Source: source, Target: "b", Mode: migration.Cold, Started: time.Now(),
		})
		if err != nil {
			t.Fatal(err)
		}
		return a.moves.Add(a.moves.newMove(a.moves.newJournal(id, engine.Definition{}), machine))
	}
	for number := range maxArriving + 1 {
		if err := offer("hostile", number); (err == nil) != (number < maxArriving) {
			t.Errorf("migration %d: %v", number, err)
		}
	}
	if err := offer("c", maxArriving+1); err != nil {
		t.Errorf("another node: %v", err)
	}
}

// TestExecAndMigrationExclude: a process that is run in a container belongs to a session here, and
// cannot move.
func TestExecAndMigrationExclude(t *testing.T) {
	a := newNode(t)
	leave, err := a.moves.Enter("x")
	if err != nil || a.moves.Entered("x") != 1 {
		t.Fatalf("%d entered, %v", a.moves.Entered("x"), err)
	}
	leave()
	if n := a.moves.Entered("x"); n != 0 {
		t.Errorf("%d are still in", n)
	}
	machine, err := migration.New(migration.Spec{
		ID: testMigration, Side: migration.Source, Container: fmt.Sprintf("%064x", 1), Name: "web",
		Source: "b", Target: "a",
		Mode: migration.Cold, Started: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	m := a.moves.newMove(a.moves.newJournal(testMigration, engine.Definition{}), machine)
	if err := a.moves.Add(m); err != nil {
		t.Fatal(err)
	}
	if _, err := a.moves.Enter(fmt.Sprintf("%064x", 1)); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("exec while migrating: %v", err)
	}
	if err := a.moves.Add(m); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("a second migration: %v", err)
	}
	a.moves.over = true
	if err := a.moves.Add(m); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("a migration while the agent ends: %v", err)
	}
}

// TestJournalOnFullDisk: what a node decides can be written down although a container has filled its disk.
func TestJournalOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	room := durable.NewSpare(dir)
	j := &journal.Journal{Dir: filepath.Join(dir, testMigration), Spare: room}
	record, err := migration.Banned(testMigration, "a", "b", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := room.Keep(); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, filepath.Join(dir, "full"))
	if err := j.Write(record); err != nil {
		t.Fatalf("with room kept: %v", err)
	}
	fill(t, filepath.Join(dir, "fuller"))
	record.Error = fmt.Sprintf("%0*d", 64<<10, 0)
	if err := j.Write(record); !durable.Full(err) {
		t.Errorf("with the room used up: %v", err)
	}
	if read, err := j.Read(); err != nil || read.Error == record.Error {
		t.Errorf("what was written before is damaged: %v", err)
	}
	if err := room.Keep(); !durable.Full(err) {
		t.Errorf("room kept on a full disk: %v", err)
	}
}

func fill(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
}

// TestMovingVolumesAreNotGiven: what is just being moved nobody else gets, and what stays he may have.
func TestMovingVolumesAreNotGiven(t *testing.T) {
	a := newNode(t)
	spec := migration.Spec{
		ID: testMigration, Side: migration.Target, Container: strings.Repeat("ab", 32), Name: "web",
		Source: "a", Target: "b",
		Mode: migration.Cold, Started: time.Now(),
	}
	machine, err := migration.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	m := a.moves.newMove(a.moves.newJournal(spec.ID, engine.Definition{
		Volumes: []engine.Volume{{Name: "moves", Path: "/m"}, {Name: "stays", Path: "/s", Stays: true}},
	}), machine)
	if err := a.moves.Add(m); err != nil {
		t.Fatal(err)
	}
	with := func(name string) error {
		return a.moves.CheckVolumes(engine.Definition{Volumes: []engine.Volume{{Name: name, Path: "/x"}}})
	}
	if err := with("moves"); !errors.Is(err, engine.ErrBusy) ||
		!strings.Contains(err.Error(), testMigration) {
		t.Errorf("half of a volume is given away: %v", err)
	}
	for _, name := range []string{"stays", "another"} {
		if err := with(name); err != nil {
			t.Error(err)
		}
	}
	close(m.done)
	if err := with("moves"); err != nil {
		t.Errorf("it has come: %v", err)
	}
}

// TestRecoveryNeedsTheEngine: a journal that says that the container has not been resumed here is
// not used before its engine says so, too: an older journal may have been put back while the
// container runs here.
func TestRecoveryNeedsTheEngine(t *testing.T) {
	web := engine.Definition{EngineName: "docker", ID: strings.Repeat("a", 64), Name: "web"}
	docker := &otherEngine{down: errors.New("it hangs")}
	a := newNode(t, &silent{}, docker)
	machine, err := migration.New(migration.Spec{
		ID: testMigration, Side: migration.Target, Container: web.ID, Name: "web", Source: "a", Target: "b",
		Mode: migration.Cold, Started: time.Now(),
	})
	if err == nil {
		err = a.moves.newJournal(testMigration, web).Write(machine.Record())
	}
	if err == nil {
		err = a.recovery.All()
	}
	if err != nil {
		t.Fatal(err)
	}
	a.moves.config.Looks.Wait()
	if _, err := a.moves.Find(testMigration); !errors.Is(err, engine.ErrBusy) ||
		!errors.Is(err, journal.ErrUnconfirmed) {
		t.Errorf("%v while its engine says nothing", err)
	}
	docker.down = nil
	a.recovery.One(testMigration)
	if _, err := a.moves.Find(testMigration); err != nil {
		t.Errorf("%v when its engine has said that it is not there", err)
	}
}

// hanging is an engine that answers late.
type hanging struct {
	*otherEngine
	asked   chan context.Context
	answers chan struct{}
}

func (h *hanging) Inspect(ctx context.Context, ref string) (engine.Container, error) {
	h.asked <- ctx
	<-h.answers
	return h.otherEngine.Inspect(ctx, ref)
}

// waitingNode is a node that recovers a migration whose engine hangs. The container has a volume that moves
// with it.
func waitingNode(t *testing.T) (*node, *hanging) {
	t.Helper()
	h := &hanging{
		otherEngine: &otherEngine{has: engine.Definition{
			EngineName: "docker", ID: strings.Repeat("a", 64), Name: "web",
			Volumes: []engine.Volume{{Name: "data", Path: "/d"}},
		}},
		asked: make(chan context.Context, 1), answers: make(chan struct{}),
	}
	a := newNode(t, &silent{}, h)
	machine, err := migration.New(migration.Spec{
		ID: testMigration, Side: migration.Target, Container: h.has.ID, Name: "web", Source: "a", Target: "b",
		Mode: migration.Cold, Started: time.Now(),
	})
	if err == nil {
		err = a.moves.newJournal(testMigration, h.has).Write(machine.Record())
	}
	if err != nil {
		t.Fatal(err)
	}
	return a, h
}

// TestRecoveryWaitsForNoOtherEngine: a migration whose engine hangs is recovered when that answers, and
// keeps no other one waiting. Nobody is told meanwhile that it is not known.
func TestRecoveryWaitsForNoOtherEngine(t *testing.T) {
	a, h := waitingNode(t)
	other, err := migration.Banned(strings.Repeat("f", 16), "a", "b", time.Now())
	if err == nil {
		err = a.moves.newJournal(other.Spec.ID, engine.Definition{}).Write(other)
	}
	if err == nil {
		err = a.recovery.All()
	}
	if err != nil {
		t.Fatal(err)
	}
	if at, limited := (<-h.asked).Deadline(); limited {
		t.Errorf("an engine that is slow is given up at %s", at)
	}
	if _, err := a.moves.Find(other.Spec.ID); err != nil {
		t.Errorf("another migration is not recovered: %v", err)
	}
	if _, err := a.moves.Find(testMigration); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("%v, of a migration that is not recovered", err)
	}
	close(h.answers)
	a.moves.config.Looks.Wait()
	if !a.moves.wasPutBack(testMigration) {
		t.Error("what the engine said is not heeded")
	}
	if a.moves.Moving(h.has.ID) {
		t.Error("a container of which an older journal was put back cannot be used")
	}
}

// TestWaitingMigrationIsUnderWay: from the start of the agent a migration that waits for its engine counts
// as one that is under way, for its container, its volumes and its nodes, and is listed with the reason.
func TestWaitingMigrationIsUnderWay(t *testing.T) {
	a, h := waitingNode(t)
	if err := a.recovery.All(); err != nil {
		t.Fatal(err)
	}
	<-h.asked
	id := h.has.ID
	if !a.moves.Moving(id) || !a.moves.AllMoving()[id] || a.moves.Moving(testContainer) {
		t.Error("the container does not count as being migrated")
	}
	if a.moves.Busy() {
		t.Error("a migration that only waits keeps links from being measured")
	}
	_, entered := a.moves.Enter(id)
	_, named := a.moves.Named(testMigration[:6])
	if specs := a.moves.UnderWay(); len(specs) != 1 || specs[0].ID != testMigration ||
		specs[0].Source != "a" && specs[0].Target != "a" {
		t.Errorf("the other node can be removed: %+v", specs)
	}
	machine, err := migration.New(migration.Spec{
		ID: strings.Repeat("e", 16), Side: migration.Source, Container: id, Name: "web", Source: "b",
		Target: "a",
		Mode:   migration.Cold, Started: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"refuse": a.moves.Refuse(id), "enter": entered, "named": named,
		"volume": a.moves.CheckVolumes(engine.Definition{Volumes: h.has.Volumes}),
		"move":   a.moves.Add(a.moves.newMove(a.moves.newJournal(strings.Repeat("e", 16), h.has), machine)),
	} {
		if err == nil || !strings.Contains(err.Error(), testMigration) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, definition := range map[string]engine.Definition{
		"the container": {EngineName: "docker", ID: id, Name: "web"},
		"its volume": {ID: testContainer, Name: "other",
			Volumes: []engine.Volume{{Name: "data", Path: "/x"}}},
	} {
		problems := a.moves.Unread().Examine(definition)
		if len(problems) != 1 || !strings.Contains(problems[0].Why, "waits for engine docker") {
			t.Errorf("offer of %s: %+v", what, problems)
		}
	}
	listed := a.moves.unread.List()
	if len(listed) != 1 || !strings.HasPrefix(*listed[0].Report().Error, "waits for engine docker") {
		t.Errorf("listed: %+v", listed)
	}
	close(h.answers)
	a.moves.config.Looks.Wait()
}

// TestWaitingMigrationStaysForTheNextAgent: a migration whose engine answers only when the agent ends is
// not begun any more.
func TestWaitingMigrationStaysForTheNextAgent(t *testing.T) {
	a, h := waitingNode(t)
	web := h.has
	h.has.ID = testContainer // the engine does not have it
	if err := a.recovery.All(); err != nil {
		t.Fatal(err)
	}
	<-h.asked
	a.moves.Wind(t.Context())
	close(h.answers)
	a.moves.config.Looks.Wait()
	if _, err := a.moves.Find(testMigration); !errors.Is(err, engine.ErrBusy) || !a.moves.Moving(web.ID) {
		t.Errorf("%v: the migration has begun", err)
	}
	next := a.again(t)
	err := next.recovery.All()
	a.moves.config.Looks.Wait()
	if _, unknown := next.moves.Find(testMigration); err != nil || unknown != nil {
		t.Errorf("%v, %v: the next agent does not go on with the migration", err, unknown)
	}
}

// TestLateAnswerOfAnEngine: an attempt that fails after another one has recovered the migration changes
// nothing.
func TestLateAnswerOfAnEngine(t *testing.T) {
	a, h := waitingNode(t)
	close(h.answers)
	h.has.ID = testContainer // the engine does not have the container
	a.recovery.One(testMigration)
	read, err := journal.Read(a.moves.Dir(testMigration))
	if err != nil {
		t.Fatal(err)
	}
	a.recovery.setWaiting(testMigration, read)
	a.recovery.setUnread(testMigration, read, journal.ErrUnconfirmed)
	if _, err := a.moves.Find(testMigration); err != nil || len(a.moves.unread.List()) > 0 {
		t.Errorf("%v, %+v", err, a.moves.unread.List())
	}
}
