package faults

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestMembers removes a node with a promoted one: nothing that the removed node has lets it in again, its
// connections end, and the remaining nodes need neither it nor the first one.
func TestMembers(t *testing.T) {
	w := newNodes(t, lab.Config{Nodes: len(nodes) + 1})
	w.refused(t, "b", "does not have the cluster's authority", "node", "rm", stranger)
	w.must(t, "a", "node", "promote", "b")
	w.refused(t, "a", "demote b", "node", "rm", "b")
	w.refused(t, "b", "no such node", "node", "rm", "z")
	w.refused(t, "b", "does not remove itself", "node", "rm", "b")
	w.promotedKeyIsPrivate(t)

	id := w.identity(t, stranger)
	data, control := w.secured(t, id, "godwit-data/1"), w.secured(t, id, "h2")
	t.Run("removed", func(t *testing.T) {
		out := w.must(t, "b", "node", "rm", stranger)
		if !strings.Contains(out, "These nodes know: a.") {
			t.Errorf("a was not told: %s", out)
		}
		for what, conn := range map[string]net.Conn{"data": data, "control": control} {
			if err := ends(conn); err != nil {
				t.Errorf("the %s connection that it had: %v", what, err)
			}
		}
		w.isOut(t, id)
	})
	t.Run("after a restart", func(t *testing.T) {
		w.stopAgent(t, "a")
		w.startAgent(t, "a")
		w.isOut(t, id)
	})
	t.Run("the first node is demoted", func(t *testing.T) {
		w.must(t, "b", "node", "demote", "a")
		w.refused(t, "a", "promoted (b)", "node", "token")
		w.newMember(t, id.Node.Number)
	})
}

func (w *world) promotedKeyIsPrivate(t *testing.T) {
	t.Helper()
	root, err := w.lab.Root("b")
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.Stat(filepath.Join(root, "var/lib/godwit/identity/ca/ca.pem"))
	if err != nil || key.Mode().Perm() != 0o600 {
		t.Errorf("the authority's key at b: %v, %v", key, err)
	}
}

// ends waits until the other end has closed a connection.
func ends(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	for buffer := make([]byte, 1<<12); ; {
		_, err := conn.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("it is open")
		}
		if err != nil {
			return nil //nolint:nilerr // that it ends is what is wanted
		}
	}
}

// isOut tries everything that a removed node can try with its certificate.
func (w *world) isOut(t *testing.T, id *identity.Identity) {
	t.Helper()
	for _, protocol := range []string{"h2", "godwit-data/1", identity.RenewProtocol} {
		if err := ends(w.secured(t, id, protocol)); err != nil {
			t.Errorf("%s: %v", protocol, err)
		}
	}
	if _, err := id.Renew(t.Context(), w.secured(t, id, identity.RenewProtocol)); err == nil {
		t.Error("its certificate was renewed")
	}
	if _, err := w.peer(t, id).Hello(t.Context(), &api.HelloRequest{}); err == nil {
		t.Error("its greeting was answered")
	}
	for _, node := range nodes {
		eventually(t, node+" to know no "+stranger, func() error {
			if out := w.must(t, node, "nodes"); strings.Contains(out, "10.77.0.3") {
				return errors.New(out)
			}
			return nil
		})
	}
	eventually(t, stranger+" to reach nobody", func() error {
		if out := w.must(t, stranger, "nodes"); strings.Contains(out, " reachable") {
			return errors.New(out)
		}
		return nil
	})
}

// newMember joins a machine at b, with a token in a file, under the name of the removed node.
func (w *world) newMember(t *testing.T, before int) {
	t.Helper()
	root, err := w.lab.Root(stranger)
	if err != nil {
		t.Fatal(err)
	}
	token := lastLine(w.must(t, "b", "node", "token"))
	if err := os.WriteFile(filepath.Join(root, "tmp/token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.must(t, stranger, "node", "join", "10.77.0.2", "--token-file", "/tmp/token", "--state", "/tmp/again",
		"--name", stranger, "--address", "10.77.0.3")
	again, err := identity.Load(filepath.Join(root, "tmp/again"))
	if err != nil {
		t.Fatal(err)
	}
	if again.Node.Number == before || again.RevocationVersion() != 1 {
		t.Errorf("number %d, list of removed nodes %d", again.Node.Number, again.RevocationVersion())
	}
}
