package lab

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"testing"
	"time"
)

// TestLinksAreAsAsked measures real links. Bounds are generous: the machine may be busy.
func TestLinksAreAsAsked(t *testing.T) {
	for _, asked := range []Link{
		{BandwidthBitsPerSecond: 100_000_000, RTT: 20 * time.Millisecond},
		{BandwidthBitsPerSecond: 10_000_000, RTT: 100 * time.Millisecond},
	} {
		t.Run(asked.String(), func(t *testing.T) {
			l := up(t, Config{Nodes: 2, Bare: true, NoCheck: true, Link: asked})
			checkAsAsked(t, l, asked)
		})
	}
}

func checkAsAsked(t *testing.T, l *Lab, asked Link) {
	t.Helper()
	var c Checked
	// Other work on the machine may spoil one measurement, but not three.
	for range 3 {
		var err error
		if c, err = l.CheckLink(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		if asAsked(c, asked) {
			t.Logf("%s: %s", asked, c)
			return
		}
	}
	t.Errorf("asked for %s, got %s", asked, c)
}

func asAsked(c Checked, asked Link) bool {
	within := func(got int64) bool {
		return math.Abs(float64(got)/float64(asked.BandwidthBitsPerSecond)-1) < 0.15
	}
	return within(c.BandwidthThere) && within(c.BandwidthBack) && (c.RTT-asked.RTT).Abs() < 3*time.Millisecond
}

func TestLinkChangesWhileInUse(t *testing.T) {
	l := up(t, Config{Nodes: 2, Bare: true, NoCheck: true, Link: quick})
	conn := echo(t, l, "a", "b")
	ask(t, conn)
	slow := Link{BandwidthBitsPerSecond: 20_000_000, RTT: 60 * time.Millisecond}
	if err := l.SetLink("b", "a", slow); err != nil {
		t.Fatal(err)
	}
	if took := ask(t, conn); took < 57*time.Millisecond {
		t.Errorf("an answer over a slow link took %s", took)
	}
	checkAsAsked(t, l, slow)

	if err := l.LinkDown("a", "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an answer over a link that is down: %v", err)
	}
	if err := l.LinkUp("a", "b"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Errorf("the connection did not survive: %v", err)
	}
	if now, err := l.Link("a", "b"); err != nil || now != slow {
		t.Errorf("the link is %s, %v", now, err)
	}
	if _, _, err := l.LinkCounters("b", "a"); err != nil {
		t.Error(err)
	}
}

func TestLossyLinkLoses(t *testing.T) {
	lossy := Link{BandwidthBitsPerSecond: 50_000_000, RTT: 2 * time.Millisecond, Loss: 0.05}
	l := up(t, Config{Nodes: 2, Bare: true, Link: lossy})
	conn := echo(t, l, "a", "b")
	within(t, 20*time.Second, "packets are lost", func() bool {
		ask(t, conn)
		there, back, err := l.LinkCounters("a", "b")
		return err == nil && there.LostPackets+back.LostPackets > 0
	})
}

// echo opens a connection between two machines whose other end sends back everything.
func echo(t *testing.T, l *Lab, from, to string) net.Conn {
	t.Helper()
	address, err := l.Address(to)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := l.Listen(t.Context(), to, "tcp4", address.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
		}
	}()
	conn, err := l.Dial(t.Context(), from, "tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends a byte over a connection and returns how long the answer took.
func ask(t *testing.T, conn net.Conn) time.Duration {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	begin := time.Now()
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

func TestClientMoves(t *testing.T) {
	l := up(t, Config{Nodes: 3, Bare: true, NoCheck: true, Link: quick})
	if err := l.Client("phone", "a", Link{RTT: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if err := l.Client("other", "b", Link{}); err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for _, to := range []string{"a", "b", "c", "other"} {
		conns = append(conns, echo(t, l, "phone", to))
	}
	back := echo(t, l, "c", "phone")
	conns = append(conns, back)
	for _, node := range []string{"b", "c", "a"} {
		if err := l.MoveClient("phone", node); err != nil {
			t.Fatal(err)
		}
		for _, conn := range conns {
			ask(t, conn)
		}
		if _, err := l.Exec(t.Context(), node, "ip", "link", "show", "cl-phone"); err != nil {
			t.Errorf("client is not at %s: %v", node, err)
		}
	}
	if got := run(t, l, "phone", "hostname", "-I"); got != "10.99.1.2" {
		t.Errorf("address of the client: %q", got)
	}
	for what, err := range map[string]error{
		"where it is": l.MoveClient("phone", "a"), "a node": l.MoveClient("a", "b"),
		"to a client": l.MoveClient("phone", "other"), "to nowhere": l.MoveClient("phone", "z"),
		"a name twice": l.Client("phone", "b", Link{}), "a node's name": l.Client("a", "b", Link{}),
		"at no node": l.Client("third", "z", Link{}), "a bad name": l.Client("Third/", "a", Link{}),
		"no such link": l.SetLink("phone", "b", Link{}),
	} {
		if err == nil {
			t.Errorf("accepted: %s", what)
		}
	}
	if err := l.RemoveClient("phone"); err != nil {
		t.Fatal(err)
	}
	if err := l.Client("third", "c", Link{}); err != nil {
		t.Errorf("a client after one was removed: %v", err)
	}
	run(t, l, "third", "ping", "-c", "1", "-W", "5", "10.77.0.1")
}
