package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// A route is switched when nothing has come for switchQuiet, because a packet that is in the device at
	// that moment may be overtaken by its successor; but at the latest switchPatience after the queue was
	// first empty.
	switchQuiet    = time.Millisecond
	switchPatience = 200 * time.Millisecond
	// After the switch the device stays until nothing has come for lingerQuiet: packets may still be on
	// their way.
	lingerQuiet = 50 * time.Millisecond
)

// Hold is an address whose packets wait in this process. A nil Hold holds nothing: it stands for a
// container without an address here.
type Hold struct {
	network *Network
	ip      netip.Addr
	table   int // of routes for what it sends on
	tun     *tun
	queue   *queue
	reader  sync.WaitGroup

	releasing sync.Mutex // one release at a time

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
	stats    HoldStats
}

// Prepare makes everything that a hold needs, so that Start takes a single change of a route. Nothing is
// held yet. An address that is already prepared or held gets the same Hold.
func (n *Network) Prepare(ip netip.Addr) (*Hold, error) {
	if elsewhere(ip) {
		return nil, nil //nolint:nilnil // a nil Hold holds nothing
	}
	for {
		n.mu.Lock()
		if err := n.known(ip); err != nil {
			n.mu.Unlock()
			return nil, fmt.Errorf("hold: %w", err)
		}
		gone, lingers := n.lingering[ip]
		if !lingers {
			break
		}
		n.mu.Unlock()
		<-gone // the device's name is in use until then; lingerQuiet after the last straggler
	}
	defer n.mu.Unlock()
	if hold := n.holds[ip]; hold != nil {
		return hold, nil
	}
	hold := &Hold{network: n, ip: ip, table: n.takeTable(ip), queue: newQueue(n.config.HoldBytes),
		stats: HoldStats{Address: ip}}
	if err := hold.prepare(); err != nil {
		delete(n.tables, hold.table)
		return nil, fmt.Errorf("prepare to hold %s: %w", ip, err)
	}
	n.holds[ip] = hold
	return hold, nil
}

// holding reports whether the address's packets wait. The caller holds mu.
func (n *Network) holding(ip netip.Addr) bool {
	hold := n.holds[ip]
	if hold == nil {
		return false
	}
	hold.mu.Lock()
	defer hold.mu.Unlock()
	return hold.started
}

// Hold makes packets to the address wait in this process, from now until Release.
func (n *Network) Hold(ip netip.Addr) (*Hold, error) {
	hold, err := n.Prepare(ip)
	if err != nil {
		return nil, err
	}
	return hold, hold.Start()
}

// prepare makes the device, its table and rule, and starts to read.
func (h *Hold) prepare() error {
	n := h.network
	opened, err := n.openTun(h.ip)
	if err != nil {
		return err
	}
	// If the destination's device vanishes, the last route of the table keeps packets from going round in
	// circles.
	last := n.route(allAddresses(), h.table)
	last.Type, last.Priority = unix.RTN_BLACKHOLE, 1<<30
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.IifName = priorityHold, h.table, opened.name
	err = n.links.RouteReplace(last)
	if err == nil {
		err = n.addRules(rule)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("set the routes of device %s: %w", opened.name, err),
			opened.file.Close(), h.removeTable())
	}
	h.tun = opened
	h.reader.Add(1)
	go h.read()
	return nil
}

// StartNew queues packets that open TCP connections to the address. All other packets go on to the
// destination, through this process: to a container here, so that what it has begun can complete, or to a
// container elsewhere that must not get new connections yet. It may follow Start, and itself with another
// destination; Start or Release has to follow it.
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

// StartRequests is StartNew that also queues datagrams that look like requests, judging by their port: for
// a container that may ask others but must not be asked anything.
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
		h.queue.push(packet, came) // there is room: it was in there
	}
}

// redirect routes the address to this hold.
func (h *Hold) redirect() error {
	h.network.mu.Lock()
	defer h.network.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.started {
		return nil
	}
	if h.network.holds[h.ip] != h {
		return fmt.Errorf("hold %s: the hold has ended", h.ip)
	}
	if err := h.network.routeInto(h.tun, h.ip); err != nil {
		return fmt.Errorf("hold %s: %w", h.ip, err)
	}
	h.started = true
	return nil
}

// read reads packets from the device until the device is closed.
func (h *Hold) read() {
	defer h.reader.Done()
	buffer := make([]byte, maxMTU)
	for {
		count, err := h.tun.file.Read(buffer)
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
	h.count(func(stats *HoldStats) {
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
func (h *Hold) count(change func(*HoldStats)) {
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
	return h.end(func() error { return h.network.switchTo(h.ip, to) })
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
	h.count(func(stats *HoldStats) {
		stats.DroppedPackets += packets
		stats.DroppedBytes += bytes
	})
	return h.end(func() error { return nil })
}

// setDestination makes the device's routing table lead to the destination.
func (h *Hold) setDestination(to Destination) error {
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holds[h.ip] != h {
		return errors.New("the hold has ended")
	}
	route, err := n.routeTo(allAddresses(), to, h.table, h.ip)
	if err != nil {
		return err
	}
	if to.container != "" {
		if err := n.plug(h.ip, to.container); err != nil {
			return err
		}
	}
	if err := n.links.RouteReplace(route); err != nil {
		return fmt.Errorf("set the destination of device %s: %w", h.tun.name, err)
	}
	return nil
}

// drain sends the queued packets until it is time to switch the route.
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

// write writes one packet back into its device, from where the rule takes it to the destination.
func (h *Hold) write(packet []byte, came time.Time) {
	_, err := h.tun.file.Write(packet)
	h.count(func(stats *HoldStats) {
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
	if _, err := h.tun.file.Write(packet); err != nil {
		h.count(func(stats *HoldStats) {
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
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holds[h.ip] != h {
		return fmt.Errorf("hold of %s: the hold has ended", h.ip)
	}
	h.setDirect(true)
	if err := switchRoute(); err != nil {
		h.setDirect(false)
		return err
	}
	h.count(func(*HoldStats) { h.switched = true })
	delete(n.holds, h.ip)
	gone := make(chan struct{})
	n.lingering[h.ip] = gone
	n.background.Add(1)
	go h.linger(gone)
	return nil
}

// linger waits until no straggler has come for a while, and then removes the device.
func (h *Hold) linger(gone chan struct{}) {
	n := h.network
	defer n.background.Done()
	for wait := lingerQuiet; wait > 0; {
		time.Sleep(wait)
		h.count(func(*HoldStats) { wait = lingerQuiet - time.Since(h.last) })
	}
	h.abandon()
	n.mu.Lock()
	n.totals.add(h.Stats())
	delete(n.lingering, h.ip)
	delete(n.tables, h.table)
	n.mu.Unlock()
	close(gone)
}

// abandon closes the device, which removes its routes, too, and removes the rule and the table.
func (h *Hold) abandon() {
	// The device is gone whatever Close returns. Remaining rules and tables are harmless, and Reconcile
	// removes them.
	_ = h.tun.file.Close()
	h.reader.Wait()
	_ = h.removeTable()
}

// removeTable removes the hold's rule and the remaining contents of its table.
func (h *Hold) removeTable() error {
	return errors.Join(
		h.network.removeRules(func(rule netlink.Rule) bool { return rule.Table == h.table }),
		h.network.removeRoutes(func(route netlink.Route) bool { return route.Table == h.table }))
}
