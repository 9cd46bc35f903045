package lab

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"
)

const ms = int64(time.Millisecond)

// packet is a packet of TCP over IPv4 as the kernel passes it on, with its header for segmentation.
func packet(payload, segment int) []byte {
	data := make([]byte, vnetHeaderSize+40+payload)
	if segment > 0 {
		data[0], data[1] = vnetNeedsChecksum, vnetGSOTCP4
		binary.LittleEndian.PutUint16(data[2:], uint16(min(len(data)-vnetHeaderSize, 65535)))
		binary.LittleEndian.PutUint16(data[4:], uint16(segment))
		binary.LittleEndian.PutUint16(data[6:], 20)
		data[vnetHeaderSize+20+12] = 5 << 4
	}
	return data
}

func admit(t *testing.T, p *pipe, now int64, data []byte) {
	t.Helper()
	f, err := readFrame(data)
	if err != nil {
		t.Fatal(err)
	}
	p.admit(now, f, data)
}

// leaves takes all packets out and returns their times.
func leaves(p *pipe) []int64 {
	var instants []int64
	for {
		at, ok := p.held.next()
		if !ok {
			return instants
		}
		p.held.pop()
		instants = append(instants, at)
	}
}

func TestPacketsLeaveByRateAndDelay(t *testing.T) {
	// A packet of 1,236 bytes with IP and TCP headers is 1,250 with Ethernet's: 1 ms at 10 Mbit/s.
	p := newPipe(Link{BandwidthBitsPerSecond: 10_000_000, RTT: 20 * time.Millisecond}, 1)
	for range 3 {
		admit(t, p, 0, packet(1196, 0))
	}
	admit(t, p, 50*ms, packet(1196, 0))
	if got, want := leaves(p), []int64{11 * ms, 12 * ms, 13 * ms, 61 * ms}; !slices.Equal(got, want) {
		t.Errorf("packets leave at %v, not %v", got, want)
	}
}

func TestSegmentedPacketCountsItsHeaders(t *testing.T) {
	p := newPipe(Link{BandwidthBitsPerSecond: 8_000_000}, 1)
	admit(t, p, 0, packet(4000, 1000))
	if got, want := leaves(p), []int64{4 * (1000 + 40 + ethernetHeader) * 1000}; !slices.Equal(got, want) {
		t.Errorf("leaves at %v, not %v", got, want)
	}
	if p.counted.Packets != 4 {
		t.Errorf("counted %d packets", p.counted.Packets)
	}
}

func TestQueueHoldsABandwidthDelayProduct(t *testing.T) {
	for _, shape := range []Link{
		{BandwidthBitsPerSecond: 10_000_000, RTT: 200 * time.Millisecond},
		{BandwidthBitsPerSecond: 10_000_000, RTT: time.Millisecond},
		{BandwidthBitsPerSecond: 64_000, RTT: time.Millisecond},
	} {
		p := newPipe(shape, 1)
		for range 10_000 {
			admit(t, p, 0, packet(1196, 0))
		}
		limit := max(int64(shape.RTT), 50*ms, p.serialisation(minQueueBytes))
		if waited := p.free; waited < limit || waited > limit+2*p.serialisation(1250) {
			t.Errorf("%s: the last packet in waits %s", shape, time.Duration(waited))
		}
		if p.counted.QueueDrops+p.counted.Packets != 10_000 {
			t.Errorf("%s: packets are missing: %+v", shape, p.counted)
		}
	}
}

func TestJitterKeepsOrder(t *testing.T) {
	shape := Link{RTT: 20 * time.Millisecond, Jitter: 8 * time.Millisecond}
	p := newPipe(shape, 1)
	for i := range int64(1000) {
		admit(t, p, i*ms, packet(100, 0))
	}
	instants := leaves(p)
	if !slices.IsSorted(instants) {
		t.Error("packets overtake each other")
	}
	least, most := int64(1<<62), int64(0)
	for i, at := range instants {
		least, most = min(least, at-int64(i)*ms), max(most, at-int64(i)*ms)
	}
	if least < 6*ms || least > 7*ms || most < 13*ms || most > 14*ms {
		t.Errorf("delays between %s and %s", time.Duration(least), time.Duration(most))
	}
}

func TestLossIsAsAsked(t *testing.T) {
	p := newPipe(Link{Loss: 0.1}, 1)
	for range 10_000 {
		admit(t, p, 0, packet(0, 0))
	}
	if lost := p.counted.LostPackets; lost < 850 || lost > 1150 {
		t.Errorf("lost %d of 10000", lost)
	}
}

func TestChangeWhilePacketsAreUnderWay(t *testing.T) {
	p := newPipe(Link{BandwidthBitsPerSecond: 1_000_000, RTT: 20 * time.Millisecond}, 1)
	admit(t, p, 0, packet(1196, 0)) // 10 ms on the wire, leaves at 20 ms
	p.set(Link{BandwidthBitsPerSecond: 10_000_000, RTT: 2 * time.Millisecond}, 0)
	admit(t, p, 0, packet(1196, 0)) // would leave at 3 ms, but does not overtake
	if got, want := leaves(p), []int64{20 * ms, 20 * ms}; !slices.Equal(got, want) {
		t.Errorf("packets leave at %v, not %v", got, want)
	}
	admit(t, p, 100*ms, packet(0, 0))
	p.set(Link{Down: true}, 100*ms)
	admit(t, p, 101*ms, packet(0, 0))
	if got := leaves(p); len(got) > 0 || p.counted.DroppedDown != 2 {
		t.Errorf("a link that is down lets through %v; counted %+v", got, p.counted)
	}
	p.set(Link{}, 102*ms)
	admit(t, p, 103*ms, packet(0, 0))
	if got := leaves(p); len(got) != 1 {
		t.Error("a link that is up again lets nothing through")
	}
}

func TestQueueReturnsWhatItGot(t *testing.T) {
	var q fifo
	var want [][]byte
	for i := range 5000 {
		data := bytes.Repeat([]byte{byte(i)}, 1+(i*7919)%65000)
		q.push(int64(i), data)
		want = append(want, data)
		for q.count() > 40 || (i%997 == 0 && q.count() > 0) {
			if got := q.pop(); !bytes.Equal(got, want[0]) {
				t.Fatalf("packet %d came back changed", i)
			}
			want = want[1:]
		}
	}
	if q.bytes() <= 0 || len(q.spare) > 4 {
		t.Errorf("the queue counts %d bytes and keeps %d slabs", q.bytes(), len(q.spare))
	}
	q.clear()
	if _, ok := q.next(); ok || q.bytes() != 0 {
		t.Error("something is left after clear")
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(packet(100, 0))
	f.Add(packet(4000, 1448))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > maxPacket {
			return
		}
		got, err := readFrame(data)
		if err != nil {
			return
		}
		if got.segments < 1 || got.segments > len(data) || got.wireBytes < len(data)-vnetHeaderSize {
			t.Errorf("%+v of %d bytes", got, len(data))
		}
	})
}
