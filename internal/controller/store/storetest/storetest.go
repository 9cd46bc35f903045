// Package storetest is the conformance suite of the controller's stores.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/controller/store"
)

// Run tests stores. open returns another handle of the same store, which is empty at first.
func Run(t *testing.T, open func(t *testing.T) func() store.Store) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, func() store.Store){
		"records": records, "all or none": allOrNone, "one leader": oneLeader, "limits": limits,
		"campaign ends": campaignEnds,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func lead(t *testing.T, s store.Store, name string) store.Term {
	t.Helper()
	term, err := s.Campaign(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = term.Resign(context.Background()) }) // it may have ended
	return term
}

func put(t *testing.T, kind store.Kind, name string, value any) store.Change {
	t.Helper()
	change, err := store.Put(kind, name, value)
	if err != nil {
		t.Fatal(err)
	}
	return change
}

func load(t *testing.T, s store.Store) store.State {
	t.Helper()
	all, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	state, err := store.Decode(all)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func records(t *testing.T, open func() store.Store) {
	s := open()
	if state := load(t, s); len(state.Nodes)+len(state.Intents) > 0 {
		t.Fatalf("a new store has %v", state)
	}
	term := lead(t, s, "one")
	node := store.Node{Name: "a", Number: 1, State: store.Active, Labels: map[string]string{"zone": "x"}}
	if err := s.Commit(t.Context(), term, put(t, store.KindNode, "a", node),
		put(t, store.KindContainer, "c1", store.Container{ID: "c1", Generation: 7})); err != nil {
		t.Fatal(err)
	}
	other := load(t, open())
	if other.Nodes["a"].Labels["zone"] != "x" || other.Containers["c1"].Generation != 7 {
		t.Errorf("another handle reads %v", other)
	}
	if err := s.Commit(t.Context(), term, store.Remove(store.KindNode, "a"),
		store.Remove(store.KindNode, "never there"),
		put(t, store.KindContainer, "c1", store.Container{ID: "c1", Generation: 8})); err != nil {
		t.Fatal(err)
	}
	if state := load(t, s); len(state.Nodes) > 0 || state.Containers["c1"].Generation != 8 {
		t.Errorf("after the second change: %v", state)
	}
}

func allOrNone(t *testing.T, open func() store.Store) {
	s := open()
	term := lead(t, s, "one")
	good := put(t, store.KindNode, "a", store.Node{Name: "a"})
	for what, bad := range map[string]store.Change{
		"no kind": {Key: store.Key{Name: "x"}}, "no name": {Key: store.Key{Kind: store.KindNode}},
		"not JSON": {Key: store.Key{Kind: store.KindNode, Name: "b"}, Value: []byte("{")},
		"twice":    good, "a path": {Key: store.Key{Kind: store.KindNode, Name: "../x"}},
	} {
		if err := s.Commit(t.Context(), term, good, bad); err == nil {
			t.Errorf("%s: accepted", what)
		}
		if state := load(t, s); len(state.Nodes) > 0 {
			t.Fatalf("%s: half of the changes were made: %v", what, state.Nodes)
		}
	}
}

func oneLeader(t *testing.T, open func() store.Store) {
	first, second := open(), open()
	term := lead(t, first, "one")
	type won struct {
		term store.Term
		err  error
	}
	next := make(chan won, 1)
	go func() {
		term, err := second.Campaign(t.Context(), "two")
		next <- won{term, err}
	}()
	if err := first.Commit(t.Context(), term, put(t, store.KindNode, "a", store.Node{})); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-next:
		t.Fatalf("a second leader beside the first: %v", got)
	default:
	}
	if err := term.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := <-next
	if got.err != nil {
		t.Fatal(got.err)
	}
	defer func() { _ = got.term.Resign(context.Background()) }()
	<-term.Lost()
	if got.term.Epoch() <= term.Epoch() {
		t.Errorf("epoch %d after %d", got.term.Epoch(), term.Epoch())
	}
	err := first.Commit(t.Context(), term, put(t, store.KindNode, "b", store.Node{}))
	if !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("a write of an old term: %v", err)
	}
	if err := second.Commit(t.Context(), got.term, put(t, store.KindNode, "c", store.Node{})); err != nil {
		t.Error(err)
	}
	if state := load(t, first); len(state.Nodes) != 2 {
		t.Errorf("nodes %v, want a and c", state.Nodes)
	}
}

func limits(t *testing.T, open func() store.Store) {
	s := open()
	term := lead(t, s, "one")
	var most []store.Change
	for i := range store.MaxChanges {
		most = append(most, put(t, store.KindNode, fmt.Sprint("n", i), store.Node{}))
	}
	if err := s.Commit(t.Context(), term, most...); err != nil {
		t.Errorf("as many as allowed: %v", err)
	}
	if err := s.Commit(t.Context(), term, append(most, put(t, store.KindNode, "m",
		store.Node{}))...); err == nil {
		t.Error("more than allowed")
	}
	large := put(t, store.KindNode, "large", strings.Repeat("x", store.MaxValueBytes))
	if err := s.Commit(t.Context(), term, large); err == nil {
		t.Error("a large value is accepted")
	}
}

func campaignEnds(t *testing.T, open func() store.Store) {
	lead(t, open(), "one")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	second := open()
	go func() {
		_, err := second.Campaign(ctx, "two")
		ended <- err
	}()
	cancel()
	if err := <-ended; err == nil {
		t.Error("a candidate that gave up leads")
	}
}
