package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/lab"
)

// TestConnect has clients that connect, send a request and close all the time, hundreds per second, while
// the container moves back and forth: whatever the state of a connection at the freeze, it is answered,
// once.
func TestConnect(t *testing.T) {
	t.Parallel()
	all := []string{cold, preCopy, postCopy, hybrid}
	far := map[time.Duration][]string{0: all, 20 * time.Millisecond: all, 100 * time.Millisecond: all}
	if testing.Short() { // each mode once
		far = map[time.Duration][]string{0: {cold, postCopy}, 100 * time.Millisecond: {preCopy, hybrid}}
	}
	for rtt, modes := range far {
		t.Run(rtt.String(), func(t *testing.T) { connectAll(t, rtt, modes) })
	}
}

func connectAll(t *testing.T, rtt time.Duration, modes []string) {
	c := run(t, nil, "/bin/serve")
	client := "far"
	if err := world.lab.Client(client, "a", lab.Link{RTT: rtt}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := world.lab.RemoveClient(client); err != nil {
			t.Error(err)
		}
	})
	asking := &askers{t: t, at: c.address() + ":7000"}
	asking.start(client, 8+int(rtt/time.Millisecond))
	defer asking.end()
	for _, mode := range modes {
		before := asking.answered.Load()
		report := c.migrateBy(mode)
		t.Logf("%s: %s: stopped %.1f ms of %.1f ms", mode, c.node, report.DowntimeSeconds*1000,
			report.TotalSeconds*1000)
		c.eventually("answers from "+c.node, func() bool { return asking.answered.Load() > before+50 })
	}
	asking.end()
	asking.check()
}

// askers are clients that reconnect again and again.
type askers struct {
	t        *testing.T
	at       string
	stopped  atomic.Bool
	working  sync.WaitGroup
	asked    atomic.Uint64
	answered atomic.Uint64
}

// start starts so many clients in a machine of the lab. Some request more than is sent at once, and some
// are slow to ask.
func (a *askers) start(machine string, clients int) {
	for number := range clients {
		size, think := uint64(0), time.Duration(0)
		switch number % 4 {
		case 1:
			size = 100_000
		case 2:
			think = 3 * time.Millisecond
		}
		a.working.Go(func() {
			err := world.lab.InNetwork(machine, func() error {
				for !a.stopped.Load() {
					a.one(size, think)
				}
				return nil
			})
			if err != nil {
				a.t.Error(err)
			}
		})
	}
}

// end stops them; those that have sent a request get their answer.
func (a *askers) end() {
	a.stopped.Store(true)
	a.working.Wait()
}

// settled is how long a freeze waits for a client that acknowledges nothing of what the container has left
// to the kernel. The rest of its answer is lost, on a machine so busy that packets get lost.
const settled = 2 * time.Second

// TestSlowClient moves a container that has closed a connection whose client takes the answer in longer than
// a freeze waits for a client that takes nothing.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	c := run(t, nil, "/bin/serve")
	const size, part = 40_000, 1000
	conn, err := dialSmall(c.address() + ":7000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 1), size)
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	took := make(chan error, 1)
	go func() {
		pace := time.NewTicker(2 * settled * part / size)
		defer pace.Stop()
		for range size / part {
			<-pace.C
			if _, err := io.ReadFull(conn, make([]byte, part)); err != nil {
				took <- err
				return
			}
		}
		rest, err := io.ReadAll(conn)
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("%d bytes too many", len(rest))
		}
		took <- err
	}()
	c.migrateBy(cold)
	if err := <-took; err != nil {
		t.Errorf("the client lost the rest of its answer: %v", err)
	}
}

// dialSmall connects from the client, with a small buffer for what it receives: the rest of an answer stays
// in the container's kernel.
func dialSmall(address string) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: patience, Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
		})
		return errors.Join(err, failed)
	}}
	err = world.lab.InNetwork("client", func() (err error) {
		conn, err = dialer.Dial("tcp", address)
		return err
	})
	return conn, err
}

// one connects, sends a request and closes.
func (a *askers) one(size uint64, think time.Duration) {
	who, began := a.asked.Add(1), time.Now()
	doing, err := ask(a.at, who, size, think)
	took := time.Since(began)
	switch {
	case err == nil:
		a.answered.Add(1)
	case errors.Is(err, unix.ECONNRESET) && took > settled:
		a.t.Logf("client %d lost the rest of an answer that took %s, %s", who, took, doing)
	default:
		a.t.Errorf("client %d, %s, %.1f ms after it began, at %s: %v", who, doing, took.Seconds()*1000,
			time.Now().Format("05.000"), err)
	}
}

// ask sends one request over a separate connection. It returns its current activity for the error.
func ask(at string, who, size uint64, think time.Duration) (doing string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	if err != nil {
		return "connecting", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "connected", err
	}
	time.Sleep(think) // so that the connection is known to be open before the request; not a synchronisation
	if _, err := conn.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, who),
		size)); err != nil {
		return "asking", err
	}
	want := append(binary.BigEndian.AppendUint64(nil, who), bytes.Repeat([]byte{byte(who)}, int(size))...)
	got, err := io.ReadAll(conn)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("a wrong answer of %d bytes", len(got))
	}
	return fmt.Sprintf("after %d bytes of the answer", len(got)), err
}

// check checks that the container has answered every request once.
func (a *askers) check() {
	a.t.Helper()
	var counts [3]uint64
	err := world.lab.InNetwork("client", func() error {
		conn, err := net.DialTimeout("tcp", a.at, patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write(make([]byte, 16)); err != nil {
			return err
		}
		return binary.Read(conn, binary.BigEndian, &counts)
	})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Logf("%d asked, %d got an answer, %d were answered, %d more than once; %d connections ended before",
		a.asked.Load(), a.answered.Load(), counts[0], counts[1], counts[2])
	if counts[0] != a.asked.Load() || counts[1] != 0 || counts[2] != 0 {
		a.t.Error("that is wrong")
	}
}

// TestConnectNobody moves a container while some incoming connections never complete: some have no client,
// and others are not accepted. The move continues without them, established connections stay, and new ones
// are accepted.
func TestConnectNobody(t *testing.T) {
	t.Parallel()
	c := state(t, nil, "tcp")
	kept := c.dial("client", "kept")
	for move, mode := range []string{cold, preCopy} {
		knock(t, c.address(), 7000)
		unaccepted, err := world.lab.Dial(t.Context(), "client", "tcp", c.address()+":7000")
		if err != nil {
			t.Fatal(err)
		}
		defer unaccepted.Close()
		r := c.migrateBy(mode)
		t.Logf("%s: stopped %.1f ms of %.1f ms", mode, r.DowntimeSeconds*1000, r.TotalSeconds*1000)
		p := c.dial("client", fmt.Sprintf("new-%d", move))
		for _, p := range []*peer{kept, p} {
			p.write(1000)
			c.ok(fmt.Sprintf("drain %[1]s %[2]d;send %[1]s %[3]d", p.name, p.sent, p.received+1000))
			p.read(1000)
		}
	}
}

// knock begins handshakes from unused addresses in the client's network.
func knock(t *testing.T, address string, port uint16) {
	t.Helper()
	to := netip.MustParseAddr(address).As4()
	client, err := world.lab.Address("client")
	if err != nil {
		t.Fatal(err)
	}
	err = world.lab.InNetwork("client", func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		for number := range byte(20) {
			from := client.As4()
			from[3] = 100 + number
			if err := unix.Sendto(socket, synPacket(from, to, port),
				0, &unix.SockaddrInet4{Addr: to}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// synPacket is an IPv4 packet, whose length and checksum the kernel fills in, with TCP's SYN (RFC 9293).
func synPacket(from, to [4]byte, port uint16) []byte {
	const tcpHeader, syn = 20, 0x02
	pseudo := append(append(append([]byte{}, from[:]...), to[:]...), 0, unix.IPPROTO_TCP, 0, tcpHeader)
	segment := make([]byte, tcpHeader)
	binary.BigEndian.PutUint16(segment, 40000)
	binary.BigEndian.PutUint16(segment[2:], port)
	segment[12], segment[13] = tcpHeader/4<<4, syn
	binary.BigEndian.PutUint16(segment[14:], 65535)
	var sum uint32
	for all := append(pseudo, segment...); len(all) > 0; all = all[2:] {
		sum += uint32(binary.BigEndian.Uint16(all))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(segment[16:], ^uint16(sum+sum>>16))
	packet := make([]byte, 20, 40)
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_TCP
	copy(packet[12:], from[:])
	copy(packet[16:], to[:])
	return append(packet, segment...)
}
