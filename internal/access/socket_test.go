package access

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSocket: the socket identifies callers, replaces the socket of a killed agent, and answers as long as
// an agent listens.
func TestSocket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("the socket belongs to root: run this as root")
	}
	dir := t.TempDir()
	path := SocketPath(dir)
	if Answers(path) {
		t.Error("a socket that is not there answers")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := Listen(dir, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, info, err := NewCredentials().ServerHandshake(conn)
	if peer, is := info.(Peer); err != nil || !is || peer.UID != uint32(os.Getuid()) ||
		peer.PID != int32(os.Getpid()) {
		t.Errorf("the caller is %+v, %v", info, err)
	}
}

// TestNoSocket: if the group is missing or the socket cannot be made, the error says what to do.
func TestNoSocket(t *testing.T) {
	if _, err := Listen(t.TempDir(), "no-such-group", nil); err == nil ||
		!strings.Contains(err.Error(), "groupadd") {
		t.Errorf("without the group: %v", err)
	}
	if _, err := Listen(filepath.Join(t.TempDir(), "none"), "", nil); err == nil {
		t.Error("a socket in no directory")
	}
	if _, err := (Groups{Move: "no-such-group"}).Resolve(""); err == nil ||
		!strings.Contains(err.Error(), "groupadd") {
		t.Errorf("rights of no group: %v", err)
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if _, _, err := NewCredentials().ServerHandshake(near); err == nil {
		t.Error("a caller that is not at a socket is known")
	}
}
