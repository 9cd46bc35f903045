package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestRollover replaces the key of the authority while a container moves, one node is off and agents
// restart. Then the key counts as stolen: a node that does not renew in time loses its membership until it
// joins again.
func TestRollover(t *testing.T) {
	w := newNodes(t, lab.Config{Nodes: len(nodes) + 1})
	w.startRedis(t)
	w.must(t, "a", "node", "promote", "b")
	eventually(t, "all nodes to know each other", func() error { return w.membersOf(t, "a", "b", stranger) })
	w.stopAgent(t, stranger)

	reply := &api.RolloverReply{}
	if err := json.Unmarshal([]byte(w.must(t, "a", "node", "rollover", "--json")), reply); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(reply.NotPromoted, []string{"b"}) ||
		!slices.Equal(reply.NotReached, []string{stranger}) {
		t.Errorf("begun: %v", reply)
	}
	w.refused(t, "b", "under way", "node", "rollover")
	for _, node := range nodes {
		eventually(t, node+" to know that both renewed", func() error { return w.renewed(t, node, "a", "b") })
	}
	s, err := w.rollover(t, "a")
	if err != nil || !s.UnderWay || !slices.Equal(s.Waiting, []string{stranger}) {
		t.Errorf("while %s is off: %v, %v", stranger, s, err)
	}
	w.refused(t, "b", "does not have", "node", "token")
	w.must(t, "a", "node", "promote", "b")
	w.killAgent(t, "a")
	w.startAgent(t, "a")
	eventually(t, "a to have its state again", func() error { return w.renewed(t, "a", "a", "b") })
	from, to := w.at, "b"
	w.must(t, from, "migrate", container, to)
	w.at = to
	w.clientGoesOn(t)

	w.startAgent(t, stranger)
	eventually(t, "the rollover to end once "+stranger+" is back", func() error {
		for _, node := range []string{"a", "b", stranger} {
			if s, err := w.rollover(t, node); err != nil || s.UnderWay || len(s.Renewed) != len(nodes)+1 {
				return fmt.Errorf("%s: %v, %w", node, s, err)
			}
		}
		return nil
	})
	w.must(t, to, "migrate", container, from)
	w.at = from
	w.clientGoesOn(t)

	// b was promoted again, and can begin the next rollover.
	stolen := w.identity(t, stranger)
	w.stopAgent(t, stranger)
	w.must(t, "b", "node", "rollover", "--now")
	eventually(t, "the old key to end", func() error {
		for _, node := range nodes {
			if s, err := w.rollover(t, node); err != nil || s.UnderWay || s.Version != 2 {
				return fmt.Errorf("%s: %v, %w", node, s, err)
			}
		}
		return nil
	})
	w.startAgent(t, stranger)
	w.areStrangers(t, stolen.Node.Address)
	w.must(t, "a", "migrate", container, "b")
	w.at = "b"
	w.clientGoesOn(t)
	w.comesBackIn(t, stolen)
	w.clientIsHappy(t)
}

func (w *world) rollover(t *testing.T, node string) (*api.RolloverReply, error) {
	out, err := w.lab.Exec(t.Context(), node, "godwit", "node", "rollover", "--status", "--json")
	if err != nil {
		return nil, err
	}
	reply := &api.RolloverReply{}
	return reply, json.Unmarshal([]byte(out), reply)
}

// membersOf returns an error unless the nodes know each other.
func (w *world) membersOf(t *testing.T, members ...string) error {
	for _, node := range members {
		if s, err := w.rollover(t, node); err != nil || len(s.Renewed) != len(members) {
			return fmt.Errorf("%s: %v, %w", node, s, err)
		}
	}
	return nil
}

// renewed returns an error unless these nodes have renewed their certificates, according to one of them.
func (w *world) renewed(t *testing.T, at string, want ...string) error {
	s, err := w.rollover(t, at)
	if err != nil {
		return err
	}
	if !slices.Equal(s.Renewed, want) {
		return fmt.Errorf("%v", s)
	}
	return nil
}

// areStrangers checks that the node at an address reaches no other, and that the others no longer know it.
func (w *world) areStrangers(t *testing.T, address string) {
	t.Helper()
	eventually(t, stranger+" to reach nobody", func() error {
		if out := w.must(t, stranger, "nodes"); strings.Contains(out, " reachable") {
			return errors.New(out)
		}
		return nil
	})
	for _, node := range nodes {
		if out := w.must(t, node, "nodes"); strings.Contains(out, address) {
			t.Errorf("%s knows it: %s", node, out)
		}
	}
}

// comesBackIn lets the excluded node join again, with its old number.
func (w *world) comesBackIn(t *testing.T, before *identity.Identity) {
	t.Helper()
	root, err := w.lab.Root(stranger)
	if err != nil {
		t.Fatal(err)
	}
	token := lastLine(w.must(t, "b", "node", "token", "--node", stranger))
	if err := os.WriteFile(filepath.Join(root, "tmp/token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.stopAgent(t, stranger)
	w.must(t, stranger, "node", "join", "10.77.0.2", "--token-file", "/tmp/token", "--name", stranger,
		"--address", "10.77.0.3", "--force")
	if again := w.identity(t, stranger); again.Node.Number != before.Node.Number {
		t.Errorf("it has the number %d now", again.Node.Number)
	}
	w.startAgent(t, stranger)
	eventually(t, stranger+" to be a member again", func() error {
		return w.membersOf(t, "a", "b", stranger)
	})
}
