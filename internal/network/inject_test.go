package network

import (
	"cmp"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/tunnel"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// datagram returns a UDP datagram in an IPv4 packet.
func datagram(from, to netip.AddrPort, payload []byte) []byte {
	const header, ttl = 20, 64
	packet := []byte{0x45, 0}
	packet = binary.BigEndian.AppendUint16(packet, uint16(header+8+len(payload)))
	packet = append(packet, 0, 0, 0, 0, ttl, unix.IPPROTO_UDP, 0, 0)
	packet = slices.Concat(packet, from.Addr().AsSlice(), to.Addr().AsSlice())
	var sum uint32
	for at := 0; at < header; at += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[at:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(packet[10:], ^uint16(sum))
	packet = binary.BigEndian.AppendUint16(packet, from.Port())
	packet = binary.BigEndian.AppendUint16(packet, to.Port())
	packet = binary.BigEndian.AppendUint16(packet, uint16(8+len(payload)))
	return slices.Concat(packet, []byte{0, 0}, payload) // RFC 768: no checksum
}

// inVXLAN returns a packet as one node sends it to another through the tunnel (RFC 7348).
func inVXLAN(from, to int, packet []byte) []byte {
	return slices.Concat([]byte{8, 0, 0, 0, tunnel.Vni >> 16, tunnel.Vni >> 8 & 0xff, tunnel.Vni & 0xff, 0},
		pool.TunnelMAC(to),
		pool.TunnelMAC(from), []byte{8, 0}, packet)
}

// raw sends an IPv4 packet unchanged, with any source.
func (s *site) raw(where string, packet []byte) {
	s.t.Helper()
	s.in(where, func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(socket) }()
		return unix.Sendto(socket, packet, 0,
			&unix.SockaddrInet4{Addr: [4]byte(packet[nft.OffsetDestination:20])})
	})
}

// say sends a datagram as any program can. Failing to send it counts as not arriving.
func (s *site) say(where string, to netip.AddrPort, payload []byte) {
	s.t.Helper()
	s.in(where, func() error {
		socket, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return nil //nolint:nilerr // there is no route
		}
		defer func() { _ = socket.Close() }()
		_, _ = socket.Write(payload)
		return nil
	})
}

// mailbox counts the datagrams that a server receives, by content.
type mailbox struct {
	mu  sync.Mutex
	got map[string]int
}

func (m *mailbox) count(text string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.got[text]
}

func (s *site) mailbox(where string, at netip.AddrPort) *mailbox {
	s.t.Helper()
	m, socket := &mailbox{got: map[string]int{}}, s.listen(where, at)
	go func() {
		buffer := make([]byte, 2048)
		for {
			count, err := socket.Read(buffer)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.got[string(buffer[:count])]++
			m.mu.Unlock()
		}
	}()
	return m
}

// intruder is a site with a container on a, one on b, and a machine on the underlay that is not a member.
type intruder struct {
	*site
	server netip.AddrPort // in the container on a
	box    *mailbox
	sender string // the container on b
}

const strangerAddress = "192.0.2.66"

func newIntruder(t *testing.T, overlay Overlay) *intruder {
	t.Helper()
	s := newSiteOf(t, overlay)
	s.join(makeTestNamespace(t, s.dir, "stranger"), s.ns("hub"), "underx", strangerAddress+"/24")
	one := s.container("a", "one")
	s.container("b", "two")
	i := &intruder{site: s, server: netip.AddrPortFrom(one.IP, 7000), sender: "b/two"}
	i.box = s.mailbox("a/one", i.server)
	i.arrives("warm-up", "c")
	i.arrives("warm-up", i.sender)
	return i
}

// arrives waits until a repeatedly sent datagram arrives. Everything sent earlier has been processed by
// then.
func (i *intruder) arrives(text, from string) {
	i.t.Helper()
	before := i.box.count(text)
	eventually(i.t, text+" from "+from, func() bool {
		i.say(from, i.server, []byte(text))
		time.Sleep(time.Millisecond)
		return i.box.count(text) > before
	})
}

// expect checks whether a datagram has arrived. If it must not arrive, expect first waits for a datagram
// that was sent later.
func (i *intruder) expect(text string, want bool) {
	i.t.Helper()
	if want {
		eventually(i.t, text, func() bool { return i.box.count(text) > 0 })
		return
	}
	i.arrives("after "+text, "c")
	if got := i.box.count(text); got != 0 {
		i.t.Errorf("%s: %d packets have arrived", text, got)
	}
}

// inner returns a packet for the server from a node's own address, as it travels through the tunnel. The
// packet's VXLAN header names the node as.
func (i *intruder) inner(from, as int, text string) []byte {
	source := netip.AddrPortFrom(i.nodes["a"].pool.NodeAddress(from), 7000)
	return inVXLAN(as, 1, datagram(source, i.server, []byte(text)))
}

func port(address string, number int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), uint16(number))
}

// encrypted returns the overlay for the tests of injection: a process, which works on any kernel, or the
// value of GODWIT_TEST_OVERLAY, such as wireguard on a kernel that has it.
func encrypted() Overlay {
	return cmp.Or(Overlay(os.Getenv("GODWIT_TEST_OVERLAY")), OverlayUserspace)
}

// TestInjected checks that no packet reaches a container unless it comes from a member, and from the member
// that it names as its sender. In the clear a spoofed source is enough, which shows that the forged packets
// are well-formed.
func TestInjected(t *testing.T) {
	const a, b, c = 1, 2, 3
	for _, overlay := range []Overlay{encrypted(), OverlayVXLAN} {
		t.Run(string(overlay), func(t *testing.T) {
			i := newIntruder(t, overlay)
			plain := overlay == OverlayVXLAN
			for _, number := range []int{defaultPort, defaultPort + 1} {
				to := port("192.0.2.1", number)
				i.raw("stranger", datagram(port(strangerAddress, 7444), to, i.inner(b, b, "own source")))
				i.raw("stranger", datagram(port("192.0.2.2", 7444), to, i.inner(b, b, "source of b")))
				i.raw("stranger", datagram(port("10.88.2.255", defaultPort), to,
					i.inner(b, b, "source of b's end")))
				i.raw("stranger", datagram(port("192.0.2.2", 7444), to, i.inner(c, c, "c with source of b")))
				for _, there := range []string{"192.0.2.1", "10.88.1.1", "10.88.1.255"} {
					i.say(i.sender, port(there, number), i.inner(b, b, "from a container of b"))
					i.say("a/one", port(there, number), i.inner(b, b, "from a container of a"))
					i.say("client-b", port(there, number), i.inner(b, b, "from a client of b"))
				}
			}
			i.expect("own source", false)
			i.expect("source of b", plain)
			i.expect("source of b's end", false)
			i.expect("c with source of b", false)
			i.expect("from a container of b", false)
			i.expect("from a container of a", false)
			i.expect("from a client of b", false)
		})
	}
}

// TestInjectedByMember checks that a member can send as itself, and not as another member.
func TestInjectedByMember(t *testing.T) {
	const a, b, c = 1, 2, 3
	i := newIntruder(t, encrypted())
	config := i.nodes["a"].config
	end := func(number int) netip.AddrPort {
		return netip.AddrPortFrom(config.pool().OverlayAddress(number),
			defaultPort)
	}
	i.raw("b", datagram(end(b), end(a), i.inner(b, b, "as itself")))
	i.raw("b", datagram(end(b), end(a), i.inner(c, c, "with the hardware address of c")))
	i.raw("b", datagram(end(c), end(a), i.inner(c, c, "from the end of c")))
	i.expect("as itself", true)
	i.expect("with the hardware address of c", false)
	i.expect("from the end of c", false)
}

// TestInjectedOnward checks that packets from the tunnel that concern no container are not forwarded.
func TestInjectedOnward(t *testing.T) {
	const a, b = 1, 2
	i := newIntruder(t, encrypted())
	config := i.nodes["a"].config
	outside := netip.MustParseAddrPort("198.51.100.2:7001")
	box := i.mailbox("client-a", outside)
	end := func(number int) netip.AddrPort {
		return netip.AddrPortFrom(config.pool().OverlayAddress(number),
			defaultPort)
	}
	i.raw("b", datagram(end(b), end(a),
		inVXLAN(b, a, datagram(port("203.0.113.9", 1), outside, []byte("onward")))))
	i.expect("nothing", false)
	eventually(t, "what a container sends", func() bool {
		i.say("a/one", outside, []byte("own"))
		time.Sleep(time.Millisecond)
		return box.count("own") > 0
	})
	if box.count("onward") != 0 {
		t.Error("it was forwarded")
	}
}

// TestInjectedByRemovedNode checks that nothing arrives from a node once it is no longer a peer.
func TestInjectedByRemovedNode(t *testing.T) {
	i := newIntruder(t, encrypted())
	config := i.config("c")
	must(t, i.nodes["a"].SetPeers([]Peer{{Name: "c", Number: 3, Underlay: config.Underlay, Key: i.key("c")}}))
	for range 20 {
		i.say(i.sender, i.server, []byte("from a removed node"))
		i.say("b", i.server, []byte("from a removed node"))
	}
	i.expect("from a removed node", false)
	i.setPeers("a")
	i.arrives("from a node that is back", i.sender)
}

// TestInjectedWithOldKey checks that nothing arrives that was sent with a node's previous key.
func TestInjectedWithOldKey(t *testing.T) {
	i := newIntruder(t, encrypted())
	private, err := wireguard.NewKey()
	must(t, err)
	changed, err := private.Public()
	must(t, err)
	must(t, i.nodes["a"].SetPeers([]Peer{
		{Name: "b", Number: 2, Underlay: i.config("b").Underlay, Key: changed},
		{Name: "c", Number: 3, Underlay: i.config("c").Underlay, Key: i.key("c")},
	}))
	for range 20 {
		i.say(i.sender, i.server, []byte("with the old key"))
	}
	i.expect("with the old key", false)
	i.setPeers("a")
	i.arrives("with the right key", i.sender)
}

// TestReplayed checks that a packet that is sent again does not arrive again.
func TestReplayed(t *testing.T) {
	for _, overlay := range []Overlay{encrypted(), OverlayVXLAN} {
		t.Run(string(overlay), func(t *testing.T) {
			i := newIntruder(t, overlay)
			frames := i.sniff("under0", "b")
			i.say(i.sender, i.server, []byte("once"))
			i.expect("once", true)
			sent := frames()
			for _, packet := range sent {
				if packet[9] != unix.IPPROTO_UDP {
					continue
				}
				// The device would have filled in the checksums; they are optional.
				const outer, inner = 26, 76
				copy(packet[outer:], []byte{0, 0})
				if overlay == OverlayVXLAN {
					copy(packet[inner:], []byte{0, 0})
				}
				i.raw("stranger", packet)
			}
			if len(sent) == 0 {
				t.Fatal("nothing was recorded")
			}
			if overlay == OverlayVXLAN {
				eventually(t, "the copy, in the clear", func() bool { return i.box.count("once") > 1 })
				return
			}
			i.arrives("after", "c")
			if got := i.box.count("once"); got != 1 {
				t.Errorf("it has arrived %d times", got)
			}
		})
	}
}

// sniff records the IPv4 packets that a device of a node sends, until the returned function is called.
func (s *site) sniff(device, where string) (stop func() [][]byte) {
	s.t.Helper()
	socket := -1
	s.in(where, func() error {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		// ETH_P_IP, swapped
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
			0x0008)
		if err != nil {
			return err
		}
		// ETH_P_ALL, which includes outgoing packets
		return unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: link.Index})
	})
	return func() (packets [][]byte) {
		defer func() { _ = unix.Close(socket) }()
		for {
			packet := make([]byte, 2048)
			count, from, err := unix.Recvfrom(socket, packet, 0)
			if err != nil {
				return packets
			}
			ethernet, _ := from.(*unix.SockaddrLinklayer)
			if ethernet.Pkttype == unix.PACKET_OUTGOING && ethernet.Protocol == 0x0008 {
				packets = append(packets, packet[:count])
			}
		}
	}
}

// TestEncrypted checks that the data of containers cannot be read on the wire.
func TestEncrypted(t *testing.T) {
	for _, overlay := range []Overlay{encrypted(), OverlayVXLAN} {
		i := newIntruder(t, overlay)
		frames := i.sniff("under0", "b")
		i.say(i.sender, i.server, []byte("a secret"))
		i.expect("a secret", true)
		seen := slices.ContainsFunc(frames(),
			func(packet []byte) bool { return containsText(packet, "a secret") })
		if want := overlay == OverlayVXLAN; seen != want {
			t.Errorf("%s: readable %t, want %t", overlay, seen, want)
		}
	}
}

func containsText(packet []byte, text string) bool {
	for at := 0; at+len(text) <= len(packet); at++ {
		if string(packet[at:at+len(text)]) == text {
			return true
		}
	}
	return false
}

// TestOverlayProcess checks that the process outlives the agent, is started again when it was killed, and
// ends with the last peer.
func TestOverlayProcess(t *testing.T) {
	i := newIntruder(t, OverlayUserspace)
	a := i.nodes["a"]
	index := func() int {
		link, err := a.links.LinkByName(tunnel.OverlayDevice)
		if err != nil {
			return 0
		}
		return link.Attrs().Index
	}
	before := index()
	i.crash("a")
	i.arrives("without the agent", "c")
	a = i.start("a")
	i.attach("a", "one", Address{IP: i.server.Addr(), MAC: pool.ContainerMAC(i.server.Addr()).String(),
		MTU: a.MTU()})
	if now := index(); now != before || now == 0 {
		t.Errorf("the device was %d and is %d", before, now)
	}
	link, err := a.links.LinkByName(tunnel.OverlayDevice)
	must(t, err)
	must(t, a.links.LinkDel(link)) // the process ends with its device
	must(t, a.KeepOverlay())
	i.arrives("with another process", "c")
	must(t, a.SetPeers(nil))
	if now := index(); now != 0 {
		t.Errorf("without peers there is device %d", now)
	}
	if status, err := a.Tunnel().OverlayStatus(); err != nil || status.String() != "wireguard" {
		t.Errorf("status %s, %v", status, err)
	}
	i.setPeers("a")
	if status, err := a.Tunnel().OverlayStatus(); err != nil || status.String() != "wireguard (process)" {
		t.Errorf("status %s, %v", status, err)
	}
}

// TestOtherOverlay checks that nothing is sent to a node with another overlay, in the clear or encrypted,
// and that the connection works again when the overlays agree again.
func TestOtherOverlay(t *testing.T) {
	s := newSiteOf(t, OverlayVXLAN)
	one := s.container("a", "one")
	server := netip.AddrPortFrom(one.IP, 7000)
	s.echo("a/one", server)
	s.sees("b", server, "10.88.2.1")
	b := Peer{Name: "b", Number: 2, Underlay: s.config("b").Underlay}
	apart := b
	apart.Apart = true
	must(t, s.nodes["a"].SetPeers([]Peer{apart}))
	frames := s.sniff("under0", "a")
	if got := s.ask("b", server, 50*time.Millisecond); got != "" {
		t.Errorf("it was answered %q", got)
	}
	if got := s.ask("a", port("10.88.2.1", 7000), 50*time.Millisecond); got != "" {
		t.Errorf("it has answered %q", got)
	}
	if sent := frames(); len(sent) != 0 {
		t.Errorf("%d packets were sent", len(sent))
	}
	must(t, s.nodes["a"].SetPeers([]Peer{b}))
	s.sees("b", server, "10.88.2.1")
}

// TestForwarding checks that a node that did not forward packets before forwards containers' packets only,
// and that a node that did forward continues.
func TestForwarding(t *testing.T) {
	for _, before := range []string{"0", "1"} {
		t.Run("ip_forward "+before, func(t *testing.T) {
			s := newSite(t)
			must(t, s.nodes["a"].Close())
			must(t, Cleanup(s.config("a")))
			s.in("a", func() error { return namespace.Sysctl("ipv4/ip_forward", before) })
			for range 2 { // the second time, Godwit itself has enabled forwarding
				s.start("a")
				in, out := s.tun("a", "left0", "198.18.1.1/24"), s.tun("a", "right0", "198.18.2.1/24")
				_, err := in.file.Write(datagram(port("198.18.1.2", 7000), port("198.18.2.2", 7000),
					[]byte("through")))
				must(t, err)
				_, err = in.file.Write(datagram(port("198.18.1.2", 7000), port("198.18.2.1", 7000),
					[]byte("to the node")))
				must(t, err)
				buffer := make([]byte, 2048)
				must(t, out.file.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
				arrived := false
				for err == nil && !arrived {
					var count int
					count, err = out.file.Read(buffer)
					arrived = err == nil && containsText(buffer[:count], "through")
				}
				if want := before == "1"; arrived != want {
					t.Errorf("forwarded: %t, want %t", arrived, want)
				}
				_, _ = in.file.Close(), out.file.Close()
				must(t, s.nodes["a"].Close())
			}
			s.start("a")
		})
	}
}

// tun makes a node's network that belongs neither to a container nor to an engine.
func (s *site) tun(where, name, address string) *tun {
	s.t.Helper()
	device := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1},
		Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true,
		Queues: 1, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE}
	s.in(where, func() error { return netlink.LinkAdd(device) })
	configure(s.t, s.ns(where), name, address, "")
	return &tun{name: name, file: device.Fds[0]}
}
