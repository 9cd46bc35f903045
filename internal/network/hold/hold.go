package hold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

const (
	// The route is switched when nothing has come for switchQuiet, because a packet that is in the device
	// at that moment may be overtaken by its successor. It is switched at the latest switchPatience after
	// the queue was first empty.
	switchQuiet    = time.Millisecond
	switchPatience = 200 * time.Millisecond
	// After the switch the device stays until nothing has come for lingerQuiet: packets may still be on
	// their way.
	lingerQuiet = 50 * time.Millisecond
)

// Hold is an address whose packets wait in this process. A nil Hold holds nothing: it stands for a
// container without an address here.
type Hold struct {
	set    *Set
	ip     netip.Addr
	device Device
	queue  *queue
	reader sync.WaitGroup

	releasing sync.Mutex // one release at a time
	routing   sync.Mutex // one change of routes at a time, and none after the end

	// While direct is set, the reader sends what it reads at once, after the queued packets: during the
	// switch, every microsecond that a packet spends here gives its successor time to overtake it.
	// Otherwise the reader does so only with packets that need not wait.
	sending sync.Mutex
	direct  bool
	waits   func(packet []byte) bool // nil: all packets do

	mu       sync.Mutex
	started  bool
	switched bool
	last     time.Time // when the latest packet came
	stats    Stats
}

// StartNew queues packets that open TCP connections to the address. All other packets go on to the
// destination, through this process: to a container here, so that its handshakes can complete, or to a
// container elsewhere that must not get new connections yet. StartNew may follow Start, or another StartNew
// with another destination. Start or Release must follow it.
func (h *Hold) StartNew(to Destination) error {
	if h == nil {
		return nil
	}
	if err := h.setDestination(to); err != nil {
		return fmt.Errorf("hold new connections to %s: %w", h.ip, err)
	}
	h.setWaits(opensTCP)
	return h.redirect()
}

// StartRequests is StartNew that also queues datagrams that look like requests by their port. It is for a
// container that may send requests but must not receive any.
func (h *Hold) StartRequests(to Destination) error {
	if h == nil {
		return nil
	}
	if err := h.setDestination(to); err != nil {
		return fmt.Errorf("hold requests to %s: %w", h.ip, err)
	}
	h.setWaits(func(packet []byte) bool { return opensTCP(packet) || isRequest(packet) })
	return h.redirect()
}

// Start queues all packets for the address. It is idempotent.
func (h *Hold) Start() error {
	if h == nil {
		return nil
	}
	h.setWaits(nil)
	return h.redirect()
}

// setWaits makes the reader queue packets that must wait, and send the others, including queued ones.
func (h *Hold) setWaits(waits func(packet []byte) bool) {
	h.sending.Lock()
	defer h.sending.Unlock()
	h.waits = waits
	if waits == nil {
		return
	}
	packets, _, _ := h.queue.size()
	for range packets {
		packet, came, _ := h.queue.peek()
		if !waits(packet) {
			h.forward(packet, came)
			continue
		}
		packet = bytes.Clone(packet)
		h.queue.pop()
		h.queue.push(packet, came) // there is room, because the packet came from the queue
	}
}

// redirect routes the address to this hold. The address counts as held from just before the route changes,
// so that the network does not route it elsewhere just after.
func (h *Hold) redirect() error {
	h.routing.Lock()
	defer h.routing.Unlock()
	if h.setStarted(true) {
		return nil
	}
	err := h.current()
	if err == nil {
		err = h.device.Redirect()
	}
	if err != nil {
		h.setStarted(false)
		return fmt.Errorf("hold %s: %w", h.ip, err)
	}
	return nil
}

// setStarted says whether the address is held, and returns whether it was.
func (h *Hold) setStarted(started bool) (was bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was, h.started = h.started, started
	return was
}

// current refuses a hold that has ended.
func (h *Hold) current() error {
	if h.set.get(h.ip) != h {
		return errors.New("the hold has ended")
	}
	return nil
}

// read reads packets from the device until the device is closed.
func (h *Hold) read() {
	defer h.reader.Done()
	buffer := make([]byte, maxPacket)
	for {
		count, err := h.device.Read(buffer)
		if err != nil {
			return
		}
		if !isPacketFor(buffer[:count], h.ip) {
			continue
		}
		h.accept(buffer[:count])
	}
}

// accept queues a packet, or sends it on.
func (h *Hold) accept(packet []byte) {
	h.sending.Lock()
	defer h.sending.Unlock()
	now, kept := time.Now(), true
	switch {
	case h.direct:
		h.flush()
		h.write(packet, now)
	case h.waits != nil && !h.waits(packet):
		h.pass(packet)
		return
	default:
		kept = h.queue.push(packet, now)
	}
	h.count(func(stats *Stats) {
		stats.HeldPackets++
		stats.HeldBytes += int64(len(packet))
		if h.switched {
			stats.LatePackets++
		}
		if !kept {
			stats.DroppedPackets++
			stats.DroppedBytes += int64(len(packet))
		}
		h.last = now
	})
}

// count updates the statistics.
func (h *Hold) count(change func(*Stats)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.stats)
}

// Release sends the queued packets to the destination, in order, no faster than the given rate (0:
// unlimited; see pacer for the pace that applies anyway), and then switches the address's route. It returns
// when the route is switched. If it fails, or ctx ends, the remaining packets stay held, and Release may be
// called again, also with another destination.
func (h *Hold) Release(ctx context.Context, to Destination, bitsPerSecond int64) error {
	if h == nil {
		return nil
	}
	h.releasing.Lock()
	defer h.releasing.Unlock()
	if err := h.setDestination(to); err != nil {
		return fmt.Errorf("release %s to %s: %w", h.ip, to, err)
	}
	if err := h.drain(ctx, newPacer(bitsPerSecond)); err != nil {
		packets, bytes, _ := h.queue.size()
		return fmt.Errorf("release %s to %s: %w; %d packets (%d bytes) are still held", h.ip, to,
			err, packets, bytes)
	}
	return h.end(func() error { return h.set.network.Switch(h.ip, to) })
}

// Close ends a hold that is no longer wanted and drops its packets. If the hold was started, the address is
// left without a route of its own: nobody answers for it until Route is called.
func (h *Hold) Close() error {
	if h == nil {
		return nil
	}
	h.releasing.Lock()
	defer h.releasing.Unlock()
	packets, bytes, _ := h.queue.size()
	for range packets {
		h.queue.pop()
	}
	h.count(func(stats *Stats) {
		stats.DroppedPackets += packets
		stats.DroppedBytes += bytes
	})
	return h.end(func() error { return nil })
}

// setDestination makes what the device sends go to the destination.
func (h *Hold) setDestination(to Destination) error {
	h.routing.Lock()
	defer h.routing.Unlock()
	if err := h.current(); err != nil {
		return err
	}
	return h.device.Lead(to)
}

// drain sends the queued packets until the route can be switched.
func (h *Hold) drain(ctx context.Context, pace *pacer) error {
	var patience time.Time
	for {
		packet, came, ok := h.queue.peek()
		wait := time.Duration(0)
		if ok {
			wait = pace.wait(len(packet), came, time.Now())
		} else {
			now := time.Now()
			if patience.IsZero() {
				patience = now.Add(switchPatience)
			}
			_, _, last := h.queue.size()
			if wait = min(switchQuiet-now.Sub(last), patience.Sub(now)); wait <= 0 {
				return nil
			}
		}
		if wait > 0 {
			if err := h.pause(ctx, wait, !ok); err != nil {
				return err
			}
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		pace.sent(len(packet), came, time.Now())
		h.forward(packet, came)
	}
}

// pause waits for a while, or until a packet comes.
func (h *Hold) pause(ctx context.Context, wait time.Duration, orPacket bool) error {
	came := h.queue.came
	if !orPacket {
		came = nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-came:
	case <-timer.C:
	}
	return nil
}

// forward sends the oldest queued packet.
func (h *Hold) forward(packet []byte, came time.Time) {
	h.write(packet, came)
	h.queue.pop()
}

// flush sends all queued packets at once. The caller holds sending.
func (h *Hold) flush() {
	for packet, came, ok := h.queue.peek(); ok; packet, came, ok = h.queue.peek() {
		h.forward(packet, came)
	}
}

// write writes one packet back into its device. A rule takes the packet from there to the destination.
func (h *Hold) write(packet []byte, came time.Time) {
	_, err := h.device.Write(packet)
	h.count(func(stats *Stats) {
		if err != nil {
			stats.DroppedPackets++
			stats.DroppedBytes += int64(len(packet))
			return
		}
		stats.ForwardedPackets++
		stats.ForwardedBytes += int64(len(packet))
		stats.LongestHoldSeconds = max(stats.LongestHoldSeconds, time.Since(came).Seconds())
	})
}

// pass forwards a packet that was not held.
func (h *Hold) pass(packet []byte) {
	if _, err := h.device.Write(packet); err != nil {
		h.count(func(stats *Stats) {
			stats.HeldPackets++
			stats.HeldBytes += int64(len(packet))
			stats.DroppedPackets++
			stats.DroppedBytes += int64(len(packet))
		})
	}
}

// setDirect allows or forbids the reader to send.
func (h *Hold) setDirect(direct bool) {
	h.sending.Lock()
	defer h.sending.Unlock()
	h.direct = direct
	if direct {
		h.flush()
	}
}

// end switches the route, and lets the device linger for stragglers. The caller has drained the queue.
func (h *Hold) end(switchRoute func() error) error {
	h.routing.Lock()
	defer h.routing.Unlock()
	if err := h.current(); err != nil {
		return fmt.Errorf("hold of %s: %w", h.ip, err)
	}
	h.setDirect(true)
	if err := switchRoute(); err != nil {
		h.setDirect(false)
		return err
	}
	h.count(func(*Stats) { h.switched = true })
	gone := make(chan struct{})
	s := h.set
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.current, h.ip)
	s.lingering[h.ip] = gone
	s.background.Add(1)
	go h.linger(gone)
	return nil
}

// linger waits until no straggler has come for a while, and then removes the device.
func (h *Hold) linger(gone chan struct{}) {
	s := h.set
	defer s.background.Done()
	for wait := lingerQuiet; wait > 0; {
		time.Sleep(wait)
		h.count(func(*Stats) { wait = lingerQuiet - time.Since(h.last) })
	}
	h.abandon()
	s.mu.Lock()
	delete(s.lingering, h.ip)
	s.mu.Unlock()
	close(gone)
}

// abandon closes the device.
func (h *Hold) abandon() {
	_ = h.device.Close() // the device is gone even on an error, and Reconcile removes the rest
	h.reader.Wait()
}
