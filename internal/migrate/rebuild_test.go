package migrate

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// slowToList is an engine that lists its containers when the test lets it, and answers no other question.
type slowToList struct {
	engine.Engine
	lists chan []engine.Container
}

func (s *slowToList) Name() string { return "slow" }

func (*slowToList) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (s *slowToList) List(context.Context) ([]engine.Container, error) { return <-s.lists, nil }

func (s *slowToList) Inspect(context.Context, string) (engine.Container, error) {
	return engine.Container{}, context.DeadlineExceeded
}

// noting is an engine that does not answer, whose notes can be read.
type noting struct {
	slowToList
	leaves []engine.Leave
	err    error
}

func (n *noting) Leaves() ([]engine.Leave, error) { return n.leaves, n.err }

func (n *noting) Capabilities() engine.Capabilities { return engine.Capabilities{LeaveNoter: n} }

// TestLostJournalIsNoEnd: a source that has lost its journal may have pages that the target lacks. As long
// as the container's engine does not answer, so that the journal cannot be rebuilt, the target does not
// hear that all has come to its end.
func TestLostJournalIsNoEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		leaves []engine.Leave
		err    error
		busy   bool
	}{
		{"it leaves", []engine.Leave{{Migration: "0123"}, {Migration: testMigration}}, nil, true},
		{"not known", nil, errors.New("on purpose"), true},
		{"another leaves", []engine.Leave{{Migration: "0123"}, {}}, nil, false},
	} {
		a := newNode(t, &silent{}, &noting{leaves: c.leaves, err: c.err})
		if err := a.recovery.LeavesYet(testMigration); errors.Is(err, engine.ErrBusy) != c.busy {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// left is an engine with a container that a migration has left frozen of which nothing is noted.
type left struct{ engine.Engine }

func (l *left) Name() string { return "left" }

func (*left) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (l *left) List(ctx context.Context) ([]engine.Container, error) {
	one, err := l.Inspect(ctx, "")
	return []engine.Container{one}, err
}

func (l *left) Inspect(context.Context, string) (engine.Container, error) {
	return engine.Container{
		Definition: engine.Definition{ID: strings.Repeat("a", 64), Name: "web", EngineName: l.Name()},
		State:      engine.Frozen,
		Leaving:    &engine.Leave{},
	}, nil
}

// TestRebuildOnce: an operator's thaw and the look at the start of the agent make one journal, and not two
// of different ids.
func TestRebuildOnce(t *testing.T) {
	one := &left{}
	a := newNode(t, &silent{}, one)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { a.recovery.Rebuild(t.Context(), one) })
	}
	all.Wait()
	if known := len(a.moves.List()) + len(a.moves.unread.List()); known != 1 {
		t.Errorf("%d migrations of one container", known)
	}
}

// TestLeavingCopyIsNotStopped: nobody ends the copy before the journal is made anew. Another node may need
// its pages.
func TestLeavingCopyIsNotStopped(t *testing.T) {
	a := newNode(t, &left{})
	_, err := NewContainers(a.moves).Own(t.Context(), "web")
	if !errors.Is(err, engine.ErrBusy) || !strings.Contains(err.Error(), "made anew") {
		t.Error(err)
	}
}
