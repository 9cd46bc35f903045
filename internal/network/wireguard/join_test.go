package wireguard

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const testOffset = 16 // as WireGuard's MessageTransportOffsetContent

// carried returns a datagram with a VXLAN header; change may alter it.
func carried(size int, change func(packet []byte)) []byte {
	packet := make([]byte, udpEnd+size)
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(packet[ipLength:], uint16(len(packet)))
	copy(packet[ipSource:], []byte{10, 88, 2, 255, 10, 88, 1, 255})
	binary.BigEndian.PutUint16(packet[ipEnd:], 40000)
	binary.BigEndian.PutUint16(packet[ipEnd+2:], 7444)
	binary.BigEndian.PutUint16(packet[udpLength:], uint16(udpEnd-ipEnd+size))
	packet[udpEnd] = 8
	if change != nil {
		change(packet)
	}
	binary.BigEndian.PutUint16(packet[ipChecksum:], ^sumOf(packet[:ipEnd], 0))
	return packet
}

// batch leaves the space that WireGuard leaves.
func batch(packets ...[]byte) (spaced [][]byte) {
	for _, packet := range packets {
		spaced = append(spaced, append(make([]byte, testOffset), packet...))
	}
	return spaced
}

// TestJoin checks that joined datagrams have the same headers up to the end of the inner Ethernet header,
// by which the packet filter identifies the sender.
func TestJoin(t *testing.T) {
	const size = 100
	set := func(at int, value byte) func([]byte) { return func(packet []byte) { packet[at] = value } }
	for name, test := range map[string]struct {
		next []byte
		want int
	}{
		"the same":                       {carried(size, nil), 2},
		"another identification":         {carried(size, set(5, 9)), 2},
		"another UDP checksum":           {carried(size, set(udpChecksum, 9)), 2},
		"other contents":                 {carried(size, set(sameEnd, 9)), 2},
		"shorter":                        {carried(size-1, nil), 2},
		"longer":                         {carried(size+1, nil), 1},
		"another inner source":           {carried(size, set(sameEnd-3, 9)), 1},
		"another inner destination":      {carried(size, set(udpEnd+8, 9)), 1},
		"another network":                {carried(size, set(udpEnd+6, 9)), 1},
		"another outer source":           {carried(size, set(ipSource+3, 9)), 1},
		"another port":                   {carried(size, set(ipEnd+1, 9)), 1},
		"another time to live":           {carried(size, set(8, 9)), 1},
		"a fragment":                     {carried(size, set(ipFragment, 0x20)), 1},
		"TCP":                            {carried(size, set(9, unix.IPPROTO_TCP)), 1},
		"no Ethernet":                    {carried(21, nil), 1},
		"a length that is not the whole": {carried(size, set(udpLength+1, 9)), 1},
		"IPv6":                           {carried(size, set(0, 0x65)), 1},
		"nothing":                        {nil, 1},
	} {
		packets := batch(carried(size, nil), test.next)
		if got := (joiner{most: 64}).count(packets, testOffset); got != test.want {
			t.Errorf("%s: %d are joined, want %d", name, got, test.want)
		}
		if got := (joiner{most: 64}).count(packets[1:], testOffset); got != 1 {
			t.Errorf("%s alone: %d", name, got)
		}
		if got := (joiner{most: 1}).count(packets, testOffset); got != 1 {
			t.Errorf("%s, with a kernel that cannot: %d", name, got)
		}
	}
	whole := carried(size, nil)
	short := carried(50, nil)
	if got := (joiner{most: 3}).count(batch(whole, short, short), testOffset); got != 2 {
		t.Errorf("after a shorter one %d are joined, want 2", got)
	}
	many := batch(slices.Repeat([][]byte{carried(1400, nil)}, 64)...)
	if got := (joiner{most: 64}).count(many, testOffset); got != (0xffff-udpEnd)/1400 {
		t.Errorf("%d of 1400 bytes are joined", got)
	}
}

// FuzzJoin joins arbitrary packets: a member may send anything.
func FuzzJoin(f *testing.F) {
	f.Add(carried(100, nil), carried(60, nil))
	f.Add([]byte{}, []byte{0x45})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		packets := batch(first, second)
		if (joiner{most: 64}).count(packets, testOffset) != 2 {
			return
		}
		if !bytes.Equal(first[udpEnd:sameEnd], second[udpEnd:sameEnd]) {
			t.Error("the headers within differ")
		}
		joinHeaders(packets, testOffset)
		header := packets[0][testOffset:]
		if got := int(binary.BigEndian.Uint16(header[ipLength:])); got != len(first)+len(second)-udpEnd {
			t.Errorf("length %d of %d and %d", got, len(first), len(second))
		}
		if sumOf(header[:ipEnd], 0) != 0xffff {
			t.Error("the header's checksum is wrong")
		}
	})
}

// inNewNamespace runs the rest of a test on a thread of a network namespace of its own.
func inNewNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the test's goroutine
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { _ = ns.Close() })
}

// TestTUN checks that written packets, joined or not, arrive in order and unchanged, and that no packet
// sent through the device is missing.
func TestTUN(t *testing.T) {
	inNewNamespace(t)
	device, err := openTUN("tun0", 1500)
	must(t, err)
	defer func() { must(t, device.Close()) }()
	link, err := netlink.LinkByName("tun0")
	must(t, err)
	address, err := netlink.ParseAddr("10.88.1.255/16")
	must(t, err)
	must(t, netlink.AddrAdd(link, address))
	must(t, netlink.LinkSetUp(link))
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 88, 1, 255), Port: 7444})
	must(t, err)
	defer func() { _ = socket.Close() }()

	var sent [][]byte
	for number := range byte(100) {
		size := 1400
		if number%10 == 9 {
			size = 30 + int(number)
		}
		sent = append(sent, carried(size, func(packet []byte) { packet[len(packet)-1] = number }))
	}
	_, err = device.Write(batch(sent...), testOffset)
	must(t, err)
	must(t, socket.SetDeadline(time.Now().Add(10*time.Second)))
	peer, buffer := netip.MustParseAddrPort("10.88.2.255:40000"), make([]byte, 4096)
	for number, packet := range sent {
		count, from, err := socket.ReadFromUDPAddrPort(buffer)
		must(t, err)
		if from != peer || !bytes.Equal(buffer[:count], packet[udpEnd:]) {
			t.Fatalf("datagram %d of %d bytes: %d from %s", number, len(packet)-udpEnd, count, from)
		}
	}

	for number := range byte(100) {
		_, err := socket.WriteToUDPAddrPort([]byte{number}, peer)
		must(t, err)
	}
	packets, sizes := batch(make([][]byte, device.BatchSize())...), make([]int, device.BatchSize())
	for i := range packets {
		packets[i] = make([]byte, testOffset+2048)
	}
	for next := byte(0); next < 100; {
		count, err := device.Read(packets, sizes, testOffset)
		must(t, err)
		for i, packet := range packets[:count] {
			if sizes[i] == udpEnd+1 && packet[testOffset] == 0x45 { // not IPv6 of the kernel
				if packet[testOffset+udpEnd] != next {
					t.Fatalf("datagram %d is read where %d should be", packet[testOffset+udpEnd], next)
				}
				next++
			}
		}
	}
}
