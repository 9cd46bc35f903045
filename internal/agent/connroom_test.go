package agent

import (
	"testing"

	"github.com/godwit/godwit/internal/wire/identity"
)

// TestOnePeerCannotHaveAllConnections: it could take every data connection of a node.
func TestOnePeerCannotHaveAllConnections(t *testing.T) {
	room := newConnRoom(5, 3)
	for i := range 4 {
		if got := room.enter("b"); got != (i < 3) {
			t.Errorf("connection %d of b: %t", i+1, got)
		}
	}
	for i := range 2 {
		if !room.enter("c") {
			t.Errorf("connection %d of c is refused", i+1)
		}
	}
	if room.enter("d") {
		t.Error("there is a sixth connection")
	}
	room.leave("b")
	if !room.enter("d") {
		t.Error("a place that was given back is not there")
	}
}

func TestKnownHost(t *testing.T) {
	p := newMembers(t, "a", "b")[0]
	p.learn([]identity.Node{{Name: "c", Number: 3, Address: "192.0.2.3:7443"}, {Name: "d", Number: 4, Address: "d.example:7443"}})
	for host, want := range map[string]bool{
		"192.0.2.3": true, "::ffff:192.0.2.3": true, "192.0.2.4": false, "127.0.0.1": false, "": false, "d.example": false,
	} {
		if got := p.knownHost(host); got != want {
			t.Errorf("%q: %t", host, got)
		}
	}
}
