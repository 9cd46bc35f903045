package network

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// counter reads a counter of /proc/net/snmp in a namespace.
func (s *site) counter(where, protocol, name string) int {
	s.t.Helper()
	var data []byte
	s.in(where, func() (err error) {
		data, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	})
	var names []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if fields[0] != protocol+":" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i := range names {
			if names[i] == name {
				value, err := strconv.Atoi(fields[i])
				must(s.t, err)
				return value
			}
		}
	}
	s.t.Fatalf("no counter %s of %s", name, protocol)
	return 0
}

// tcp opens one connection from a namespace to a server in another.
func (s *site) tcp(from, to string, at netip.AddrPort) (client, server net.Conn) {
	s.t.Helper()
	var listener net.Listener
	s.in(to, func() (err error) {
		listener, err = net.Listen("tcp4", at.String())
		return err
	})
	defer func() { _ = listener.Close() }()
	s.in(from, func() (err error) {
		client, err = net.DialTimeout("tcp4", at.String(), 5*time.Second)
		return err
	})
	server, err := listener.Accept()
	must(s.t, err)
	s.t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

// pour sends random bytes and returns their hash.
func pour(to net.Conn, seed byte, bytes int64) ([32]byte, error) {
	hash := sha256.New()
	_, err := io.CopyN(io.MultiWriter(to, hash), rand.NewChaCha8([32]byte{seed}), bytes)
	return [32]byte(hash.Sum(nil)), err
}

// TestHoldDuringBulkTransfer sends both ways at full speed, with segmentation offload, while the address is
// held again and again. It checks that the data arrives unchanged, with no bad checksum and no reset.
func TestHoldDuringBulkTransfer(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	client, server := s.tcp("client-b", "a/one", netip.AddrPortFrom(address.IP, 7000))
	const bytes = 24 << 20
	errs := make(chan error, 4)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		sent := make(chan [32]byte, 1)
		go func() {
			hash, err := pour(way[0], byte(len(errs)), bytes)
			sent <- hash
			errs <- err
		}()
		go func() {
			hash := sha256.New()
			_, err := io.CopyN(hash, bufio.NewReaderSize(way[1], 1<<20), bytes)
			if err == nil && [32]byte(hash.Sum(nil)) != <-sent {
				err = errors.New("what came is not what was sent")
			}
			errs <- err
		}()
	}
	holds, held := 0, int64(0)
	for done := 0; done < 4; {
		select {
		case err := <-errs:
			must(t, err)
			done++
			continue
		default:
		}
		hold, err := s.nodes["a"].Hold(address.IP)
		must(t, err)
		eventually(t, "a held packet or the end",
			func() bool { return hold.Stats().HeldPackets > 0 || len(errs) > 0 })
		must(t, hold.Release(t.Context(), Local("one"), 0))
		stats := hold.Stats()
		if stats.DroppedPackets != 0 {
			t.Errorf("%+v", stats)
		}
		holds++
		held += stats.HeldPackets
	}
	if holds < 2 || held == 0 {
		t.Errorf("%d holds of %d packets: the transfer was not held", holds, held)
	}
	for _, where := range []string{"client-b", "a/one", "a", "b"} {
		for _, name := range []string{"OutRsts", "InCsumErrors"} {
			if count := s.counter(where, "Tcp", name); count != 0 {
				t.Errorf("%s of %s is %d", name, where, count)
			}
		}
	}
}

func TestEstablished(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	at := netip.AddrPortFrom(address.IP, 7000)
	client, _ := s.tcp("client-a", "a/one", at)
	_, err := client.Write([]byte("unread"))
	must(t, err)
	eventually(t, "one connection with six unread bytes", func() bool {
		list, err := s.nodes["a"].Established("one")
		must(t, err)
		return len(list) == 1 && list[0].Local == at &&
			list[0].Remote.String() == client.LocalAddr().String() && list[0].UnreadBytes == 6
	})
	if _, err := s.nodes["a"].Established("nobody"); !errors.Is(err, ErrNotAttached) {
		t.Errorf("connections of an unknown container: %v", err)
	}
}

// TestNobodyAnswersForAContainerThatIsAway covers an address that was never assigned, a detached address,
// and an address whose hold died with its process. Senders receive nothing, not even an ICMP error.
func TestNobodyAnswersForAContainerThatIsAway(t *testing.T) {
	s := newSite(t)
	before := map[string]int{} // a node may hear of a peer before the peer's overlay is up
	answers := func(node string) int {
		return s.counter(node, "Icmp", "OutDestUnreachs") + s.counter(node, "Tcp", "OutRsts")
	}
	for _, node := range []string{"a", "b", "c"} {
		before[node] = answers(node)
	}
	detached, held := s.container("a", "detached"), s.container("a", "held")
	must(t, s.nodes["a"].Detach("detached"))
	_, err := s.nodes["a"].Hold(held.IP)
	must(t, err)
	s.nodes["a"].dropTuns()
	nobody := netip.MustParseAddr("10.88.1.250")
	nowhere := netip.MustParseAddr("10.88.77.7")
	for _, from := range []string{"client-a", "c"} {
		for _, ip := range []netip.Addr{detached.IP, held.IP, nobody, nowhere} {
			if from == "c" && ip == nowhere {
				continue // the node's own sockets are told at once that it has no route
			}
			s.in(from, func() error {
				_, err := net.DialTimeout("tcp4", netip.AddrPortFrom(ip, 7000).String(), 50*time.Millisecond)
				var timeout net.Error
				if !errors.As(err, &timeout) || !timeout.Timeout() {
					t.Errorf("%s to %s: %v, want no answer", from, ip, err)
				}
				return nil
			})
		}
	}
	for _, node := range []string{"a", "b", "c"} {
		if count := answers(node) - before[node]; count != 0 {
			t.Errorf("node %s sent %d ICMP errors and resets", node, count)
		}
	}
}
