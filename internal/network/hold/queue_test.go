package hold

import (
	"bytes"
	"net/netip"
	"testing"
	"time"
)

// FuzzQueue compares the queue with a plain list.
func FuzzQueue(f *testing.F) {
	f.Add([]byte{1, 200, 0, 3, 255, 255, 0, 0, 0})
	f.Fuzz(func(t *testing.T, steps []byte) {
		const limit = 600 << 10
		q, list, held := newQueue(limit), [][]byte{}, 0
		for i, step := range steps {
			if step%3 != 0 || len(list) == 0 {
				packet := bytes.Repeat([]byte{byte(i)}, int(step)<<8)
				fits := held+len(packet) <= limit
				if q.push(packet, time.Unix(int64(i), 0)) != fits {
					t.Fatalf("push of %d bytes to %d: not %t", len(packet), held, fits)
				}
				if fits {
					list, held = append(list, packet), held+len(packet)
				}
				continue
			}
			packet, _, ok := q.peek()
			if !ok || !bytes.Equal(packet, list[0]) {
				t.Fatalf("step %d: got %d bytes, %t, want %d", i, len(packet), ok, len(list[0]))
			}
			q.pop()
			held -= len(list[0])
			list = list[1:]
		}
		if packets, bytes, _ := q.size(); int(packets) != len(list) || int(bytes) != held {
			t.Errorf("size is %d packets, %d bytes; want %d, %d", packets, bytes, len(list), held)
		}
		if _, _, ok := q.peek(); ok != (len(list) > 0) {
			t.Errorf("peek is %t with %d packets", ok, len(list))
		}
	})
}

func TestPacer(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, test := range []struct {
		name          string
		bitsPerSecond int64
		packets       int
		apart, want   time.Duration // between arrivals; total until the last packet is sent
	}{
		{"few at once", 0, freeBurst, time.Second, 0},
		{"many at eight times the speed", 0, 801, 10 * time.Millisecond, time.Second},
		{"rate", 8000, 11, 0, 10 * time.Second},
	} {
		now, pace := start, newPacer(test.bitsPerSecond)
		for i := range test.packets {
			came := start.Add(-time.Hour).Add(time.Duration(i) * test.apart)
			now = now.Add(max(0, pace.wait(1000, came, now)))
			pace.sent(1000, came, now)
		}
		if got := now.Sub(start); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func TestFullQueueDropsTheNewestAndCounts(t *testing.T) {
	h := &Hold{ip: netip.MustParseAddr("10.88.1.2"), queue: newQueue(1000)}
	for i := range 10 {
		h.accept(bytes.Repeat([]byte{byte(i)}, 300))
	}
	stats := h.Stats()
	if stats.HeldPackets != 10 || stats.DroppedPackets != 7 || stats.QueuedPackets != 3 ||
		stats.DroppedBytes != 2100 {
		t.Errorf("%+v", stats)
	}
	if oldest, _, _ := h.queue.peek(); oldest[0] != 0 {
		t.Errorf("oldest is packet %d", oldest[0])
	}
}
