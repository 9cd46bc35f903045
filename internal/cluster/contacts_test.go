package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
)

func contactsOf(t *testing.T) (*Contacts, *[]string) {
	t.Helper()
	var met []string
	c := newContacts(newMembers(t, "a")[0].id, time.Minute, func(name string) { met = append(met, name) })
	t.Cleanup(func() { _ = c.Close() })
	return c, &met
}

// TestConnectionIsKept: a node has one control connection, until its address changes, a hello gets no answer
// in time, or it is removed. A connection that a session uses stays.
func TestConnectionIsKept(t *testing.T) {
	c, met := contactsOf(t)
	node := identity.Node{Name: "b", Number: 2, Address: "127.0.0.1:1"}
	first, err := c.Client(node)
	if err != nil {
		t.Fatal(err)
	}
	asked, ctx, cancel, err := c.Asking(t.Context(), node)
	if err != nil || asked != first || ctx.Err() != nil {
		t.Fatalf("another connection: %v", err)
	}
	cancel()
	node.Address = "127.0.0.1:2"
	moved, done, err := c.SessionClient(node)
	if err != nil || moved == first || first.GetState() != connectivity.Shutdown {
		t.Fatalf("a node with another address: %v, the connection before is %s", err, first.GetState())
	}
	silent := fmt.Errorf("no answer: %w", context.DeadlineExceeded)
	c.note("b", heardVersion{}, silent)
	c.disconnectAll()
	if again, err := c.Client(node); err != nil || again != moved {
		t.Errorf("the connection of a session was closed: %v", err)
	}
	done(true)
	again, err := c.Client(node)
	if err != nil || again == moved {
		t.Errorf("a session was silent, and its connection stays: %v", err)
	}
	done(true) // of a connection that is closed
	if same, err := c.Client(node); err != nil || same != again {
		t.Errorf("the end of an old session closes another connection: %v", err)
	}
	c.note("b", heardVersion{}, silent)
	if again.GetState() != connectivity.Shutdown {
		t.Error("a hello got no answer, and its connection stays")
	}
	if again, err = c.Client(node); err != nil {
		t.Fatal(err)
	}
	c.forget("b")
	c.forget("b")
	if again.GetState() != connectivity.Shutdown || len(*met) != 1 {
		t.Errorf("the connection to a removed node is %s; met %v", again.GetState(), *met)
	}
	if _, err := c.Client(node); err != nil || len(*met) != 2 {
		t.Errorf("a removed node that is back: %v, met %v", err, *met)
	}
}

// TestWhatANodeReports: what a node says counts from its first connection on, until it is removed.
func TestWhatANodeReports(t *testing.T) {
	c, _ := contactsOf(t)
	say := func(err error) (back bool) {
		back = c.note("b", heardVersion{program: "1.0"}, err)
		c.noteMember("b", &api.HelloReply{Authority: true, Knows: []byte{1}})
		c.noteMember("b", &api.HelloReply{Knows: make([]byte, 33)})
		c.noteRefused("b", []string{"cold", "teleport"})
		c.noteContact("b")
		return back
	}
	if say(nil) || c.signs("b") || c.knows("b") != nil || c.RefusedBy("b") != nil ||
		c.Reaches("b") || !c.Contact("b").IsZero() {
		t.Error("an unknown node was heard")
	}
	said := &api.Node{Name: "b"}
	if c.describe(said); said.Error != notReached {
		t.Errorf("an unknown node: %+v", said)
	}
	if _, err := c.Client(identity.Node{Name: "b", Number: 2, Address: "127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	if say(errors.New("refused")) || c.Reaches("b") || c.reported("b").version != "" {
		t.Errorf("a node that does not answer: %+v", c.reported("b"))
	}
	if !say(nil) || say(nil) {
		t.Error("a node is back never, or twice")
	}
	if !c.signs("b") || len(c.knows("b")) != 1 || len(c.RefusedBy("b")) != 1 || !c.Reaches("b") ||
		c.Contact("b").IsZero() {
		t.Errorf("of what it says %+v is left", c.reported("b"))
	}
	if c.describe(said); !said.Reachable || said.Error != "" || said.Version != "1.0" || !said.Authority {
		t.Errorf("described as %+v", said)
	}
	c.forget("b")
	if c.signs("b") || c.Reaches("b") {
		t.Error("a removed node is remembered")
	}
}
