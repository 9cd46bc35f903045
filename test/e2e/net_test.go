package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab/labtest"
)

// The seeds of the data to the container and from it, as in workloads/net.c.
const (
	inward  = 1
	outward = 2
)

// pattern is the sequence of bytes of workloads/main.c.
func pattern(seed, at uint64) byte {
	x := (at/8+1)*0x9e3779b97f4a7c15 + seed*0xbf58476d1ce4e5b9
	x ^= x >> 31
	x *= 0x94d049bb133111eb
	x ^= x >> 29
	return byte(x >> (at % 8 * 8))
}

func patternAt(seed, at uint64, size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = pattern(seed, at+uint64(i))
	}
	return data
}

// peer is the other end, in a client or node, of a container's connection.
type peer struct {
	t              *testing.T
	name           string
	conn           *net.TCPConn
	sent, received uint64
	writing        sync.WaitGroup
}

// dial connects from a machine of the lab to the container.
func (c *container) dial(machine, name string) *peer {
	c.t.Helper()
	conn, err := world.lab.Dial(c.t.Context(), machine, "tcp", c.address()+":7000")
	if err != nil {
		c.t.Fatalf("connect from %s: %v", machine, err)
	}
	p := newPeer(c.t, name, conn)
	if _, err := fmt.Fprintf(conn, "%s\n", name); err != nil {
		c.t.Fatal(err)
	}
	c.ok("accept", name)
	return p
}

// accept lets the container connect to a machine of the lab.
func (c *container) accept(machine, name string) *peer {
	c.t.Helper()
	address, err := world.lab.Address(machine)
	if err != nil {
		c.t.Fatal(err)
	}
	listener, err := world.lab.Listen(c.t.Context(), machine, "tcp", address.String()+":0")
	if err != nil {
		c.t.Fatal(err)
	}
	defer listener.Close()
	if err := listener.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		c.t.Fatal(err)
	}
	c.ok("connect", name, address.String(), strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
	conn, err := listener.Accept()
	if err != nil {
		c.t.Fatal(err)
	}
	return newPeer(c.t, name, conn)
}

func newPeer(t *testing.T, name string, conn net.Conn) *peer {
	p := &peer{t: t, name: name, conn: conn.(*net.TCPConn)}
	t.Cleanup(func() {
		_ = p.conn.Close()
		p.writing.Wait()
	})
	// Unread data must not fit into the peer's own buffer.
	if err := errors.Join(p.conn.SetReadBuffer(1<<16),
		p.conn.SetDeadline(time.Now().Add(2*patience))); err != nil {
		t.Fatal(err)
	}
	return p
}

// write sends bytes in the background, because they may exceed the queues.
func (p *peer) write(size int) {
	data := patternAt(inward, p.sent, size)
	p.sent += uint64(size)
	p.writing.Wait()
	p.writing.Go(func() {
		if _, err := p.conn.Write(data); err != nil && !errors.Is(err, net.ErrClosed) {
			p.t.Errorf("%s: write: %v", p.name, err)
		}
	})
}

// read expects so many more bytes from the container.
func (p *peer) read(size uint64) {
	p.t.Helper()
	data := make([]byte, size)
	if n, err := io.ReadFull(p.conn, data); err != nil {
		p.t.Errorf("%s: read %d bytes after %d: %v after %d", p.name, size, p.received, err, n)
		return
	}
	if !slices.Equal(data, patternAt(outward, p.received, int(size))) {
		p.t.Errorf("%s: wrong data between %d and %d", p.name, p.received, p.received+size)
	}
	p.received += size
}

// end expects the container to end its side.
func (p *peer) end() {
	p.t.Helper()
	if n, err := p.conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		p.t.Errorf("%s: read at the end: %d, %v", p.name, n, err)
	}
}

// stuff lets the container write until the queues are full, and returns how much it wrote.
func (c *container) stuff(p *peer) uint64 {
	c.t.Helper()
	size, err := strconv.ParseUint(c.ask("stuff", p.name), 10, 64)
	if err != nil || size < 1000 {
		c.t.Fatalf("%s: stuff: %d, %v", p.name, size, err)
	}
	return size
}

// TestTCP moves a container with connections in both directions, to and from a client and both nodes, with
// data in the queues of both ends.
func TestTCP(t *testing.T) {
	t.Parallel()
	c := state(t, nil, "tcp")
	const size = 1 << 20
	var peers []*peer
	stuffed := map[*peer]uint64{}
	// Not to b: a connection to the node to which the container moves has its other end at the container's
	// new host itself, which knows the connection by the address that the old host gave it. It is lost.
	for _, machine := range []string{"client", "a"} {
		peers = append(peers, c.dial(machine, "from-"+machine), c.accept(machine, "to-"+machine))
	}
	peers = append(peers, c.dial("b", "from-b"))
	for _, p := range peers {
		p.write(size)
		c.eventually("data in both queues of "+p.name, func() bool {
			stuffed[p] = c.stuff(p)
			var in, out int
			_, err := fmt.Sscan(c.ask("queues", p.name), &in, &out)
			return err == nil && in > 0 && out > 0
		})
	}
	for move := range 2 {
		c.migrate()
		c.ok("check")
		for _, p := range peers {
			half := stuffed[p] / 2
			c.ok("drain", p.name, strconv.Itoa(size*(move+1)/2))
			p.read(half)
		}
	}
	for _, p := range peers {
		p.read(stuffed[p] - p.received)
		p.write(10)
		c.ok(fmt.Sprintf("drain %[1]s %[2]d;send %[1]s %[3]d;shutdown %[1]s", p.name, size+10,
			stuffed[p]+100))
		p.read(100)
		p.end()
	}
}

// TestHalfClosed moves connections of which one side has ended, before and after the other side knows, with
// data still in the queues.
func TestHalfClosed(t *testing.T) {
	t.Parallel()
	c := state(t, nil, "tcp")
	unread, known := c.dial("client", "ended-by-client-unread"), c.dial("client", "ended-by-client")
	for _, p := range []*peer{unread, known} {
		p.write(1000)
		p.writing.Wait()
		if err := p.conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	c.ok("drain", known.name, "1000")
	c.ok("end", known.name)
	stuffed, waits := c.dial("client", "ended-by-container-stuffed"), c.accept("client", "ended-by-container")
	amount := c.stuff(stuffed)
	c.ok("shutdown", stuffed.name)
	c.ok("send", waits.name, "50")
	c.ok("shutdown", waits.name)
	waits.read(50)
	waits.end()

	for move := range 2 {
		c.migrate()
		c.ok("send", known.name, strconv.Itoa(100*(move+1)))
		known.read(100)
		waits.write(100)
		c.ok("drain", waits.name, strconv.Itoa(100*(move+1)))
		c.ok("check")
	}
	c.ok("drain", unread.name, "1000")
	c.ok("end", unread.name)
	c.ok("send", unread.name, "70")
	unread.read(70)
	stuffed.read(amount)
	stuffed.end()
	stuffed.write(200)
	c.ok("drain", stuffed.name, "200")
	for _, p := range []*peer{unread, known} {
		c.ok("shutdown", p.name)
		p.end()
	}
	for _, p := range []*peer{stuffed, waits} {
		p.writing.Wait()
		if err := p.conn.CloseWrite(); err != nil {
			t.Error(err)
		}
		c.ok("end", p.name)
	}
}

// TestListening opens new connections to a container after each move, from a client and both nodes.
func TestListening(t *testing.T) {
	t.Parallel()
	c := state(t, nil, "tcp")
	for move := range 3 {
		if move > 0 {
			c.migrate()
		}
		for _, machine := range []string{"client", "a", "b"} {
			for _, p := range []*peer{
				c.dial(machine, fmt.Sprintf("from-%s-%d", machine, move)),
				c.accept(machine, fmt.Sprintf("to-%s-%d", machine, move)),
			} {
				p.write(1000)
				c.ok(fmt.Sprintf("drain %[1]s 1000;send %[1]s 1000;close %[1]s", p.name))
				p.read(1000)
				p.end()
			}
		}
	}
}

// unanswered is the maximum in flight on a connection of TestTraffic. More data than a receive queue may
// hold (tcp_rmem) stalls connections for good on Linux 6.17 and later, moved or not: see criu.Relief.
const unanswered = 1 << 20

// TestTraffic has connections that are never idle while the container moves several times. Each byte comes
// back, in order.
func TestTraffic(t *testing.T) {
	t.Parallel()
	c := state(t, nil, "tcp")
	var stop atomic.Bool
	var both sync.WaitGroup
	for _, machine := range []string{"client", "a", "b"} {
		p := c.dial(machine, "echo-"+machine)
		c.ok("echo", p.name)
		room := make(chan struct{}, unanswered/echoed)
		both.Go(func() { p.ask(&stop, room) })
		both.Go(func() { p.answers(room) })
	}
	for range 4 {
		c.migrate()
	}
	stop.Store(true)
	both.Wait()
}

// echoed is the size of the echoed pieces.
const echoed = 1000

// ask sends piece after piece, while there is room, and ends its side.
func (p *peer) ask(stop *atomic.Bool, room chan<- struct{}) {
	defer close(room)
	for at := uint64(0); !stop.Load(); at += echoed {
		room <- struct{}{}
		_ = p.conn.SetWriteDeadline(time.Now().Add(2 * patience)) // its error is also the write's
		if _, err := p.conn.Write(patternAt(inward, at, echoed)); err != nil {
			p.t.Errorf("%s: %v", p.name, err)
			break
		}
	}
	if err := p.conn.CloseWrite(); err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
}

// answers compares the echoes, and makes room for as many pieces.
func (p *peer) answers(room <-chan struct{}) {
	buffer := make([]byte, 1<<16)
	for at := uint64(0); ; {
		_ = p.conn.SetReadDeadline(time.Now().Add(2 * patience))
		n, err := p.conn.Read(buffer)
		if !slices.Equal(buffer[:n], patternAt(inward, at, n)) {
			p.t.Errorf("%s: wrong data after %d bytes", p.name, at)
			err = io.ErrUnexpectedEOF
		}
		before := at
		at += uint64(n)
		for range at/echoed - before/echoed {
			<-room
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.t.Errorf("%s: after %d bytes: %v", p.name, at, err)
			}
			break
		}
	}
	for range room { // the sender sees the error itself
	}
}

// unansweredDatagrams is the maximum number of TestUDP's datagrams in flight to a socket: fewer than the
// receive buffers of both ends hold, wherever they wait. If neither end gets to read for a while on a busy
// machine, more would be lost in these buffers, which no promise covers. A lost datagram has no answer: it
// keeps its place until the end.
const unansweredDatagrams = 150

// datagramBuffer is the size that both ends request, as in workloads/net.c: the kernel doubles it for its
// own needs.
const datagramBuffer = 200000

// TestUDP sends numbered datagrams to a container all the time while it moves, to a connected and an
// unconnected socket. Each must arrive once, and each answer must come back.
func TestUDP(t *testing.T) {
	t.Parallel()
	c := state(t, nil, "udp")
	open, err := world.lab.Dial(t.Context(), "client", "udp", c.address()+":7001")
	if err != nil {
		t.Fatal(err)
	}
	connected, err := world.lab.Dial(t.Context(), "client", "udp", c.address()+":7002")
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(connected.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.ok("connect", host, port)
	senders := []*datagrams{{t: t, conn: open}, {t: t, conn: connected}}
	for _, s := range senders {
		s.start()
	}
	for range 2 {
		c.migrate()
		c.ok("check")
	}
	var counts []string
	for _, s := range senders {
		s.stop()
		counts = append(counts, strconv.Itoa(s.sent))
	}
	c.ok("arrived", strings.Join(counts, " "))
	for _, s := range senders {
		s.answered()
	}
}

// datagrams sends numbered datagrams at a steady rate and notes the answers.
type datagrams struct {
	t        *testing.T
	conn     net.Conn
	ended    chan struct{}
	room     chan struct{}
	sending  sync.WaitGroup
	sent     int
	mu       sync.Mutex
	answers  map[uint32]int
	received sync.WaitGroup
}

func (d *datagrams) start() {
	d.ended, d.room, d.answers = make(chan struct{}), make(chan struct{}, unansweredDatagrams),
		map[uint32]int{}
	if err := d.conn.(*net.UDPConn).SetReadBuffer(datagramBuffer); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = d.conn.Close(); d.received.Wait() })
	d.sending.Go(func() {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for number := uint32(0); ; number++ {
			select {
			case <-d.ended:
				return
			case <-ticker.C:
			}
			select {
			case <-d.ended:
				return
			case d.room <- struct{}{}:
			}
			if _, err := d.conn.Write(binary.BigEndian.AppendUint32(nil, number)); err != nil {
				d.t.Errorf("datagram %d: %v", number, err)
				return
			}
			d.sent++
		}
	})
	d.received.Go(func() {
		buffer := make([]byte, 16)
		for {
			n, err := d.conn.Read(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil || n != 4 {
				d.t.Errorf("answer of %d bytes: %v", n, err)
				continue
			}
			d.answer(binary.BigEndian.Uint32(buffer))
		}
	})
}

// answer records an answer. The first answer to a datagram makes room for another datagram.
func (d *datagrams) answer(number uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.answers[number]++; d.answers[number] == 1 {
		<-d.room
	}
}

func (d *datagrams) stop() {
	close(d.ended)
	d.sending.Wait()
}

// answered expects one answer to each datagram.
func (d *datagrams) answered() {
	d.t.Helper()
	complete := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.answers) >= d.sent
	}
	if !labtest.Within(patience, complete) {
		d.t.Errorf("%d of %d datagrams were answered", len(d.answers), d.sent)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for number, times := range d.answers {
		if times != 1 {
			d.t.Errorf("datagram %d was answered %d times", number, times)
		}
	}
}
