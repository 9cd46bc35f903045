package wire

import (
	"errors"
	"testing"

	"github.com/godwit/godwit/internal/wire/identity"
)

// TestARemovedNodeIsCutOff: connections in both directions end, and none is made again.
func TestARemovedNodeIsCutOff(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	toA, atA := connect(t, b, a)
	toB, atB := connect(t, a, b)
	if _, err := a.id.RemoveNode(identity.Peer{Name: "b", Number: 2}); err != nil {
		t.Fatal(err)
	}
	for what, conn := range map[string]*Conn{"from it": atA, "to it": toB, "its own": toA, "its own, from here": atB} {
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("a connection %s is open: read %d bytes", what, n)
		}
	}
	if err := dialError(t, a.id, b.address(), "b"); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("to it: %v", err)
	}
	for _, protocol := range []string{dataProtocol, controlProtocol, identity.RenewProtocol} {
		conn, err := dial(testContext(t), b.id, a.address(), "a", protocol, dataTimeout)
		if err != nil {
			continue
		}
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s from it: read %d bytes", protocol, n)
		}
		conn.Close()
	}
	nothingAccepted(t, a)
	eventually(t, "every refusal is logged with its reason", func() bool {
		count := 0
		for _, err := range a.logged() {
			if errors.Is(err, identity.ErrRevoked) {
				count++
			}
		}
		return count == 3
	})
}
