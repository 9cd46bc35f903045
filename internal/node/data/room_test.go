package data

import "testing"

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
