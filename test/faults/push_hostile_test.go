package faults

import (
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// TestPushHostile opens connections for remote pages at a node that waits for some: as an unrelated node,
// and as the source, but a single connection, two at once, and in the wrong direction. No page may become
// wrong, and all must come in the end.
func TestPushHostile(t *testing.T) {
	t.Parallel()
	w := newNodesOf(t, lab.Config{Nodes: len(nodes) + 1}, patient)
	w.mode = migration.PostCopy
	w.startRedis(t)
	w.loadRedis(t, "b")
	w.meet(t)
	w.settle(t, w.begin(t, "a", "b"))
	w.slowDown(t)
	w.meet(t)
	id, left := w.pushTo(t, "b", "a", 1)
	t.Logf("%d pages are missing", left)
	urgent := stream.Hello{Migration: id, Purpose: "urgent"}
	push := stream.Hello{Migration: id, Purpose: "push"}
	for _, hello := range []stream.Hello{urgent, push, {Migration: id, Purpose: "migration"},
		{Migration: id, Purpose: "pages"}} {
		if session, err := stream.Open(t.Context(), w.secured(t, w.identity(t, stranger), "godwit-data/1"),
			hello, stream.Options{}); err == nil {
			t.Errorf("a stranger's connection for %s was accepted", hello.Purpose)
			session.Close()
		}
	}
	source := w.identity(t, "b")
	for _, order := range [][]stream.Hello{{urgent}, {push}, {push, urgent}, {urgent, urgent}, {push, push},
		{urgent, push, push}} {
		var sessions []*stream.Session
		for _, hello := range order {
			session, err := stream.Open(t.Context(), w.secured(t, source, "godwit-data/1"), hello,
				stream.Options{})
			if err != nil { // everything may have come
				t.Log(err)
				continue
			}
			sessions = append(sessions, session)
		}
		for _, session := range sessions {
			if session.Begin("nonsense", "nonsense") == nil && session.End() == nil {
				_ = session.Flush() // it may be closed already
			}
			_ = session.Close()
		}
	}
	w.settle(t, id)
	if r, _ := w.report(t, "b", id); w.at != "a" || r.Result != migration.Moved {
		t.Errorf("it is on %s, and the source says %+v", w.at, r)
	}
	w.clientGoesOn(t)
	w.memoryIsRight(t)
	w.clientIsHappy(t)
}

func (w *world) identity(t *testing.T, node string) *identity.Identity {
	t.Helper()
	root, err := w.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	id, err := identity.Load(filepath.Join(root, "var/lib/godwit"))
	if err != nil {
		t.Fatal(err)
	}
	return id
}
