package migrate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

var errFailed = errors.New("failed")

// decidedWork is work whose other node says something.
type decidedWork struct {
	idle
	says    func(migration.State, migration.Side) Said
	mayNot  error  // it may not be taken back
	missing bool   // pages
	gaveUp  string // how the missing pages were given up
	alarm   string
}

func (d *decidedWork) Hear(_ context.Context, state migration.State, at migration.Side) Said {
	return d.says(state, at)
}

func (d *decidedWork) MayTakeBack(context.Context, bool) error { return d.mayNot }

func (d *decidedWork) MissingPages(context.Context, string) (bool, error) { return d.missing, nil }

func (d *decidedWork) GiveUpPages(_ context.Context, how string) error {
	d.gaveUp = how
	return nil
}

func (d *decidedWork) Alarm() string { return d.alarm }

func (d *decidedWork) Fresh() Work { return d }

// doubted is a migration from node b whose outcome is not known.
func doubted(t *testing.T, n *node, work *decidedWork) *Move {
	t.Helper()
	machine, err := migration.New(migration.Spec{
		ID: testMigration, Side: migration.Source, Container: testContainer, Name: "web", Source: "b",
		Target: "a", Mode: migration.Cold, Started: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	record := machine.Record()
	record.State, record.Begun = migration.InDoubt, []migration.StepName{migration.StepFreeze}
	if machine, _, err = migration.Resume(record); err != nil {
		t.Fatal(err)
	}
	m := n.moves.New(engine.Definition{ID: testContainer, Name: "web"}, machine)
	work.idle = idle{m}
	m.Take(work)
	if err := n.moves.Add(m); err != nil {
		t.Fatal(err)
	}
	return m
}

func newOperators(n *node) *Operators {
	return NewOperators(n.recovery, func(string) time.Time { return time.Time{} })
}

// TestResolve carries out an operator's decision, refuses it, or heeds what the other node says.
func TestResolve(t *testing.T) {
	never := migration.Message{Kind: migration.KindNeverRan, Error: "it never ran"}
	for name, c := range map[string]struct {
		says   Said
		runsAt migration.Side
		force  bool
		want   string // in the error
		notice string
		state  migration.State
	}{
		"the target runs it": {
			says: Said{Word: migration.WordElse}, runsAt: migration.Source, want: "runs at a",
			state: migration.InDoubt,
		},
		"not reached, forced": {
			says: Said{Word: migration.WordNone, Why: "no route"}, runsAt: migration.Source, force: true,
			notice: "no route", state: migration.Undoing,
		},
		"it never ran": {
			says: Said{Word: migration.WordNever, Message: &never}, runsAt: migration.Source,
			state: migration.Undoing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			work := &decidedWork{says: func(migration.State, migration.Side) Said { return c.says }}
			m := doubted(t, n, work)
			notice, err := newOperators(n).Resolve(t.Context(), m, Decision{RunsAt: c.runsAt, Force: c.force})
			if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if !strings.Contains(notice, c.notice) {
				t.Errorf("notice %q, want %q", notice, c.notice)
			}
			if state := m.Record().State; state != c.state && state != migration.Done {
				t.Errorf("state %s, want %s", state, c.state)
			}
		})
	}
}

// TestNotTakenBack: what the source's work refuses is refused before the other node is asked.
func TestNotTakenBack(t *testing.T) {
	n := newNode(t)
	m := doubted(t, n, &decidedWork{mayNot: errFailed})
	if _, err := newOperators(n).Resolve(t.Context(), m, Decision{RunsAt: migration.Source}); !errors.Is(err,
		errFailed) {
		t.Errorf("error %v", err)
	}
}

// TestThaw lets a container run on whose target never ran it.
func TestThaw(t *testing.T) {
	n := newNode(t)
	never := migration.Message{Kind: migration.KindNeverRan}
	doubted(t, n, &decidedWork{says: func(migration.State, migration.Side) Said {
		return Said{Word: migration.WordNever, Message: &never}
	}})
	if _, err := newOperators(n).Thaw(t.Context(), "web", false); err != nil {
		t.Fatal(err)
	}
	if _, err := newOperators(n).Thaw(t.Context(), "web", false); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("nothing is left to thaw: %v", err)
	}
}

// TestAlarms lists what an operator should look at, sorted by names.
func TestAlarms(t *testing.T) {
	n := newNode(t)
	work := &decidedWork{}
	doubted(t, n, work)
	if alarms := n.moves.Alarms(nil); len(alarms) != 0 {
		t.Errorf("alarms: %v", alarms)
	}
	work.alarm = "it has run"
	alarms := n.moves.Alarms([]*api.Alarm{{Name: "zebra"}})
	if len(alarms) != 2 || alarms[0].Kind != alarmThawed || alarms[0].Text != "it has run" ||
		alarms[1].Name != "zebra" {
		t.Errorf("alarms: %v", alarms)
	}
}

// told is a line whose peer answers.
type told struct {
	reply *api.TellReply
	err   error
}

func (l told) Tell(context.Context, migration.Message) (*api.TellReply, error) { return l.reply, l.err }

func TestTellNow(t *testing.T) {
	for _, c := range []struct {
		line told
		want migration.Word
		told bool
	}{
		{told{reply: &api.TellReply{Answer: &api.Message{}}}, migration.WordGiven, true},
		{told{reply: &api.TellReply{Word: string(migration.WordElse)}}, migration.WordElse, true},
		{told{reply: &api.TellReply{}}, migration.WordPending, true},
		{told{err: status.Error(codes.Unavailable, "no route")}, migration.WordNone, false},
		{told{err: errFailed}, migration.WordNone, false},
		{told{err: status.Error(codes.Internal, "damaged")}, migration.WordPending, false},
	} {
		heard, told := TellNow(t.Context(), c.line, migration.Message{Kind: migration.KindRunning})
		if heard.Word != c.want || told != c.told {
			t.Errorf("%+v: %+v, told %t", c.line, heard, told)
		}
	}
}
