package wire

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestARemovedNodeIsCutOff checks that connections in both directions end, and that no new one can be made.
func TestARemovedNodeIsCutOff(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	toA, atA := connect(t, b, a)
	toB, atB := connect(t, a, b)
	if _, err := a.id.RemoveNode(identity.Peer{Name: "b", Number: 2}); err != nil {
		t.Fatal(err)
	}
	for what, conn := range map[string]*Conn{"from it": atA, "to it": toB, "its own": toA,
		"its own, from here": atB} {
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
	await.True(t, "every refusal is logged with its reason", func() bool {
		count := 0
		for _, err := range a.logged() {
			if errors.Is(err, identity.ErrRevoked) {
				count++
			}
		}
		return count == 3
	})
}

// TestStrangersCannotKeepNodesOut checks that strangers with many addresses cannot take all places for
// handshakes.
func TestStrangersCannotKeepNodesOut(t *testing.T) {
	gate := newGate(4, 2, func(host string) bool { return host == "192.0.2.9" })
	at := func(host string) net.Conn { return &from{address: &net.TCPAddr{IP: net.ParseIP(host), Port: 1}} }
	for i, want := range []bool{true, true, true, true, false} {
		if err := gate.enter(at(fmt.Sprintf("192.0.2.%d", i+1))); (err == nil) != want {
			t.Errorf("stranger %d: %v", i+1, err)
		}
	}
	for i, want := range []bool{true, true, false} {
		if err := gate.enter(at("192.0.2.9")); (err == nil) != want {
			t.Errorf("handshake %d of a node: %v", i+1, err)
		}
	}
}

// from is a connection from an address.
type from struct {
	net.Conn
	address net.Addr
}

func (f *from) RemoteAddr() net.Addr { return f.address }
