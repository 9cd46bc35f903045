package faults

import (
	"crypto/rand"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
)

// stranger is a third node, from which others are attacked. It has no containers.
const stranger = "c"

// TestBadInput gives wrong commands to a node and wrong messages to its port. Each gets a clear error, and
// nothing changes.
func TestBadInput(t *testing.T) {
	w := newNodes(t, lab.Config{Nodes: len(nodes) + 1})
	w.startRedis(t)
	w.loadRedis(t, "b")
	w.meet(t)
	w.quiet(t)
	t.Run("commands", w.badCommands)
	t.Run("name taken", w.nameTaken)
	t.Run("tokens", w.badTokens)
	t.Run("garbage", w.garbage)
	t.Run("hostile peer", w.hostilePeer)
	t.Run("another cluster", w.anotherCluster)
	w.clientIsHappy(t)
}

// unchanged checks that do changes nothing on the nodes.
func (w *world) unchanged(t *testing.T, do func()) {
	t.Helper()
	before := map[string]snapshot{}
	for _, node := range nodes {
		before[node] = w.look(t, node)
	}
	do()
	for _, node := range nodes {
		eventually(t, node+" to be as before", func() error { return before[node].compare(w.look(t, node)) })
	}
	w.clientGoesOn(t)
}

// refused runs a command that must fail, with these words in its output.
func (w *world) refused(t *testing.T, node string, words string, args ...string) {
	t.Helper()
	out, err := w.godwit(t.Context(), node, args...)
	if err == nil {
		t.Errorf("godwit %s on %s succeeded: %s", strings.Join(args, " "), node, out)
	} else if !strings.Contains(out+err.Error(), words) {
		t.Errorf("godwit %s on %s: want %q in what it says: %s %v", strings.Join(args, " "), node, words,
			out, err)
	}
}

func (w *world) badCommands(t *testing.T) {
	w.must(t, "a", "run", "-d", "--name", "ended", "redis", "true")
	eventually(t, "a container to end", func() error {
		_, err := w.godwit(t.Context(), "a", "wait", "ended")
		return err
	})
	const unknown = "0123456789abcdef"
	w.unchanged(t, func() {
		w.refused(t, "a", "no such container", "migrate", "nothing", "b")
		w.refused(t, "b", "redis", "migrate", container, "a") // it is on the other node
		w.refused(t, "a", "no such node", "migrate", container, "z")
		w.refused(t, "a", "already on a", "migrate", container, "a")
		w.refused(t, "a", "no such mode", "migrate", container, "b", "--mode", "warp")
		w.refused(t, "a", "timeout", "migrate", container, "b", "--timeout", "1ms")
		w.refused(t, "a", "only a running container", "migrate", "ended", "b")
		w.refused(t, "a", "usage", "migrate", container)
		w.refused(t, "a", "no migration", "migration", "show", unknown)
		w.refused(t, "a", "no migration", "migration", "cancel", unknown)
		w.refused(t, "a", "no migration", "migration", "watch", "../../identity")
		w.refused(t, "a", "no migration", "migration", "resolve", unknown, "--runs-at", "source")
		w.refused(t, "a", "source or", "migration", "resolve", unknown, "--runs-at", "nowhere")
	})
	w.must(t, "a", "rm", "ended")
}

func (w *world) nameTaken(t *testing.T) {
	w.must(t, "b", "run", "-d", "--name", container, "redis")
	w.quiet(t)
	w.unchanged(t, func() {
		w.refused(t, "a", "name "+container, "migrate", container, "b")
		w.refused(t, "a", "name "+container, "migrate", container, "b", "--dry-run")
	})
	w.must(t, "b", "rm", "--force", container)
}

func (w *world) badTokens(t *testing.T) {
	const server = "10.77.0.1:7443"
	join := func(token, state string) []string {
		return []string{"node", "join", server, token, "--state", "/tmp/" + state, "--name", stranger,
			"--address", "10.77.0.3"}
	}
	token := func(args ...string) string {
		return lastLine(w.must(t, "a", append([]string{"node", "token"}, args...)...))
	}
	w.unchanged(t, func() {
		w.refused(t, stranger, "token", join("nonsense", "x")...)
		good := token("--node", stranger)
		i := strings.LastIndexAny(good, "abcdefghij")
		w.refused(t, stranger, "token", join(good[:i]+"z"+good[i+1:], "x")...)
		w.refused(t, stranger, "expired", join(token("--ttl", "1ms"), "x")...)
		w.refused(t, stranger, "name", join(token(), "x")...) // it has already joined
		w.refused(t, "b", "initialised first", "node", "token")
		w.must(t, stranger, join(good, "again")...)
		w.refused(t, stranger, "used", join(good, "twice")...)
	})
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// garbage attacks a node's port without a certificate.
func (w *world) garbage(t *testing.T) {
	w.unchanged(t, func() {
		noise := make([]byte, 1<<16)
		_, _ = rand.Read(noise) // never fails
		for _, bytes := range [][]byte{
			noise, []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
			{0x16, 0x03, 0x01, 0xff, 0xff, 0x01}, // the beginning of a TLS handshake, then silence
			[]byte("GODWIT\n\x00\x00\x01\xff\xff"),
		} {
			conn := w.toPort(t)
			_, _ = conn.Write(bytes) // the connection may be closed already
			_ = conn.(*net.TCPConn).CloseWrite()
			answer := make([]byte, 1<<12)
			_, _ = conn.Read(answer)
			if strings.Contains(string(answer), "godwit") || strings.Contains(string(answer), "redis") {
				t.Errorf("the answer to %.20q tells something: %q", bytes, answer)
			}
			conn.Close()
		}
		for _, protocol := range []string{"h2", "godwit-data/1"} {
			secured := tls.Client(w.toPort(t),
				&tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol},
					MinVersion: tls.VersionTLS13})
			err := secured.HandshakeContext(t.Context())
			if err == nil { // In TLS 1.3 the client notices at its first read.
				_, err = secured.Read(make([]byte, 1))
			}
			if err == nil {
				t.Errorf("a client without a certificate may speak %s", protocol)
			}
			secured.Close()
		}
	})
}

// toPort connects from the stranger to the port of node a.
func (w *world) toPort(t *testing.T) net.Conn {
	t.Helper()
	conn, err := w.lab.Dial(t.Context(), stranger, "tcp", "10.77.0.1:7443")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// anotherCluster replaces a known node by a node of another cluster.
func (w *world) anotherCluster(t *testing.T) {
	w.stopAgent(t, stranger)
	w.must(t, stranger, "node", "init", "--state", "/tmp/other", "--name", stranger, "--address", "10.77.0.3")
	if err := w.lab.StartAgent(t.Context(), stranger, "--state", "/tmp/other"); err != nil {
		t.Fatal(err)
	}
	w.unchanged(t, func() {
		w.refused(t, "a", "another cluster", "migrate", container, stranger)
		w.refused(t, "a", "another cluster", "migrate", container, stranger, "--dry-run")
		if out := w.must(t, "a", "nodes"); !strings.Contains(out, "another cluster") {
			t.Errorf("nodes: %s", out)
		}
		if out := w.must(t, stranger, "nodes"); strings.Contains(out, "10.77.0.1") {
			t.Errorf("the node of another cluster knows of this one: %s", out)
		}
	})
}
