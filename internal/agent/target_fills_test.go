package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// unfilledEngine is one in which nothing fills a container's memory.
type unfilledEngine struct {
	engine.Engine
	report memory.FillReport
	err    error
	asked  int
}

func (*unfilledEngine) Name() string { return "" }

func (e *unfilledEngine) RemotePages(context.Context, string) (memory.RemotePages, error) {
	e.asked++
	return nil, engine.ErrNotFilling
}

func (e *unfilledEngine) Memory(context.Context, string) (memory.FillReport, error) {
	return e.report, e.err
}

// TestNothingFillsYetIsNotComplete: an engine that starts a container late may do so when the
// source's connections are there. The source gives its copy up when it hears that nothing is
// missing, so nobody may say so before the container has run.
func TestNothingFillsYetIsNotComplete(t *testing.T) {
	none, broken := memory.FillReport{State: memory.FillNone}, errors.New("the report cannot be read")
	for _, c := range []struct {
		decision migration.Outcome
		fill     memory.FillReport
		err      error
		ok       bool
	}{
		{"", none, nil, false},
		{migration.Ran, none, nil, true}, // it has ended, and its report is gone
		{"", memory.FillReport{State: memory.Filled}, nil, true},
		{migration.Ran, memory.FillReport{State: memory.Filling, RemoteLeft: 1}, nil, false},
		{migration.Ran, memory.FillReport{}, engine.ErrNotFound, true},
		{migration.Ran, memory.FillReport{}, broken, false},
	} {
		a := newTestAgent(t)
		one := past(t, a, 1, migration.RolledBack)
		if c.decision == migration.Ran {
			one = past(t, a, 2, migration.Moved)
		}
		a.engines = engine.NewSet(&unfilledEngine{report: c.fill, err: c.err})
		if c.decision == "" && one.move.record().Decision == migration.Ran {
			t.Fatal("the case is not what it says")
		}
		if err := one.nothingMissing(t.Context()); (err == nil) != c.ok {
			t.Errorf("%q, %+v, %v: %v", c.decision, c.fill, c.err, err)
		}
	}
}

// TestPushWaitsForWhatFills: pages are brought to nobody before there is somebody who takes them.
func TestPushWaitsForWhatFills(t *testing.T) {
	a := newTestAgent(t)
	one, fake := past(t, a, 1, migration.RolledBack), &unfilledEngine{}
	a.engines = engine.NewSet(fake)
	one.arrival = struct{ engine.Arrival }{}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errNotHere)
	if err := one.pushOver(ctx, nil); !errors.Is(err, errNotHere) || fake.asked > 0 {
		t.Errorf("it does not wait: %v, asked %d times", err, fake.asked)
	}
	close(one.fills)
	fake.err = errNotHere
	if err := one.pushOver(t.Context(), nil); !errors.Is(err, errNotHere) || fake.asked != 1 {
		t.Errorf("it does not ask: %v, asked %d times", err, fake.asked)
	}
}
