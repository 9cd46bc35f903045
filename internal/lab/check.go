package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// What a link must keep to be what was asked for.
const (
	bandwidthTolerance = 0.10
	rttTolerance       = time.Millisecond
	checkedBandwidth   = 500_000_000 // above it the measurement is told, but promises nothing
)

// The parts of a measurement.
const (
	checkPings     = 9
	checkMeasure   = 400 * time.Millisecond
	checkTimeout   = 15 * time.Second
	checkSegment   = 1448 // payload of a TCP segment with time stamps in 1500 bytes
	parallelBudget = 300_000_000
)

// Checked is what was measured of a link.
type Checked struct {
	BandwidthThere int64         `json:"bandwidth_there_bits_per_second"` // on the wire, from A to B
	BandwidthBack  int64         `json:"bandwidth_back_bits_per_second"`
	RTT            time.Duration `json:"rtt_nanoseconds"` // the least of a few
	OK             bool          `json:"ok"`
	Problems       []string      `json:"problems,omitempty"`
}

// String describes the measurement for a person.
func (c Checked) String() string {
	var parts []string
	if c.BandwidthThere > 0 {
		parts = append(parts, fmt.Sprintf("%.4g and %.4g Mbit/s", float64(c.BandwidthThere)/1e6, float64(c.BandwidthBack)/1e6))
	}
	parts = append(parts, fmt.Sprintf("rtt %.2f ms", c.RTT.Seconds()*1e3))
	text := strings.Join(parts, ", ")
	if !c.OK {
		text += "; this machine cannot do what was asked: " + strings.Join(c.Problems, "; ")
	}
	return text
}

// CheckLink measures a link between two nodes. A link that is not as asked is not an error but Checked.OK false.
func (l *Lab) CheckLink(ctx context.Context, a, b string) (Checked, error) {
	s, err := loadState(l.name)
	if err != nil {
		return Checked{}, err
	}
	w, err := s.wire(a, b)
	if err != nil {
		return Checked{}, err
	}
	return l.measure(ctx, s, w)
}

// checkAll measures all links between nodes, several at a time where they are slow.
func (l *Lab) checkAll(ctx context.Context, report func(string)) error {
	s, err := loadState(l.name)
	if err != nil {
		return err
	}
	group, groupContext := errgroup.WithContext(ctx)
	group.SetLimit(parallelChecks(s))
	results := make([]Checked, len(s.Links))
	for i, w := range s.Links {
		group.Go(func() error {
			results[i], err = l.measure(groupContext, s, w)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return l.update(func(s *state) error {
		for i, w := range s.Links {
			w.Check = &results[i]
			report(fmt.Sprintf("link %s-%s: measured %s", w.A, w.B, results[i]))
		}
		return nil
	})
}

func parallelChecks(s *state) int {
	most := int64(1)
	for _, w := range s.Links {
		if b := w.Link.BandwidthBitsPerSecond; b != Unlimited {
			most = max(most, b)
		} else {
			return 1
		}
	}
	return int(min(max(parallelBudget/most, 1), 16))
}

func (l *Lab) measure(ctx context.Context, s *state, w *wire) (Checked, error) {
	var c Checked
	if w.Link.Down {
		return c, fmt.Errorf("link %s-%s is down", w.A, w.B)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	a, err := s.machine(w.A)
	if err != nil {
		return c, err
	}
	b, err := s.machine(w.B)
	if err != nil {
		return c, err
	}
	c.RTT, err = l.measureRTT(ctx, a, b)
	if err == nil && w.Link.Loss == 0 {
		c.BandwidthThere, err = l.measureRate(ctx, a, b, w.Link)
	}
	if err == nil && w.Link.Loss == 0 {
		c.BandwidthBack, err = l.measureRate(ctx, b, a, w.Link)
	}
	if err != nil {
		return c, fmt.Errorf("measure link %s-%s: %w", w.A, w.B, err)
	}
	c.judge(w.Link)
	return c, nil
}

// judge compares with what was asked. A lossy link's throughput is that of TCP, not of the link, and is not measured.
func (c *Checked) judge(asked Link) {
	if off := (c.RTT - asked.RTT).Abs(); off > rttTolerance+asked.Jitter {
		c.Problems = append(c.Problems, fmt.Sprintf("the rtt is %s, not %s", c.RTT.Round(10*time.Microsecond), asked.RTT))
	}
	bandwidth := asked.BandwidthBitsPerSecond
	if bandwidth != Unlimited && bandwidth <= checkedBandwidth && asked.Loss == 0 {
		for _, measured := range []int64{c.BandwidthThere, c.BandwidthBack} {
			if math.Abs(float64(measured)/float64(bandwidth)-1) > bandwidthTolerance {
				c.Problems = append(c.Problems, fmt.Sprintf("the bandwidth is %.4g Mbit/s, not %.4g",
					float64(measured)/1e6, float64(bandwidth)/1e6))
			}
		}
	}
	c.OK = len(c.Problems) == 0
}

func (m *machine) address() netip.Addr {
	if m.isNode() {
		return nodeAddress(m.Number)
	}
	return clientAddress(m.Number)
}

// pair opens a TCP connection between two machines.
func (l *Lab) pair(ctx context.Context, from, to *machine, control func(fd int) error) (dialled, accepted net.Conn, err error) {
	listener, err := l.listenWith(ctx, to, control)
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	dialled, err = l.Dial(ctx, from.Name, "tcp4", listener.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	accepted, err = listener.Accept()
	if err != nil {
		_ = dialled.Close()
		return nil, nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		err = errors.Join(dialled.SetDeadline(deadline), accepted.SetDeadline(deadline))
	}
	return dialled, accepted, err
}

func (l *Lab) listenWith(ctx context.Context, at *machine, control func(fd int) error) (listener net.Listener, err error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = control(int(fd)) })
		return errors.Join(err, failed)
	}}
	config.SetMultipathTCP(false)
	err = l.InNetwork(at.Name, func() error {
		listener, err = config.Listen(ctx, "tcp4", netip.AddrPortFrom(at.address(), 0).String())
		return err
	})
	return listener, err
}

func (l *Lab) measureRTT(ctx context.Context, a, b *machine) (time.Duration, error) {
	dialled, accepted, err := l.pair(ctx, a, b, func(int) error { return nil })
	if err != nil {
		return 0, err
	}
	defer dialled.Close()
	defer accepted.Close()
	go func() { _, _ = io.Copy(accepted, accepted) }() // ends with the connection
	least := time.Duration(math.MaxInt64)
	one := make([]byte, 1)
	for i := 0; i < checkPings; i++ {
		begin := time.Now()
		if _, err := dialled.Write(one); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(dialled, one); err != nil {
			return 0, err
		}
		least = min(least, time.Since(begin))
		if least > 50*time.Millisecond && i >= 2 {
			break
		}
	}
	return least, nil
}

// measureRate sends for a short time and returns the rate on the wire. The receiver's window keeps the sender from
// filling the queue until packets are lost: it is the link that is to be measured, not how TCP recovers.
func (l *Lab) measureRate(ctx context.Context, from, to *machine, asked Link) (int64, error) {
	window := receiveWindow(asked)
	sending, receiving, err := l.pair(ctx, from, to, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, window)
	})
	if err != nil {
		return 0, err
	}
	defer receiving.Close()
	if tcp, ok := sending.(*net.TCPConn); ok {
		if err := forceSendBuffer(tcp, window); err != nil {
			return 0, err
		}
	}
	go send(sending)
	defer sending.Close()
	return receiveRate(receiving, warmUp(asked))
}

func send(conn net.Conn) {
	block := make([]byte, 64<<10)
	for {
		if _, err := conn.Write(block); err != nil {
			return // closed by the receiver, who has enough
		}
	}
}

func forceSendBuffer(conn *net.TCPConn, size int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size)
	})
	return errors.Join(err, failed)
}

// receiveWindow holds what is under way and half of the queue. The kernel uses half of a socket's buffer, or less, for
// data.
func receiveWindow(asked Link) int {
	bandwidth := float64(asked.BandwidthBitsPerSecond)
	if asked.BandwidthBitsPerSecond == Unlimited {
		bandwidth = 2e9
	}
	underWay := (asked.RTT + minQueueTime/2).Seconds() * bandwidth / 8
	return int(min(max(underWay, 64<<10), 64<<20))
}

// warmUp is how long TCP needs to get to speed: slow start doubles each round trip from ten segments.
func warmUp(asked Link) time.Duration {
	rounds := 2.0
	if asked.BandwidthBitsPerSecond != Unlimited {
		segments := asked.RTT.Seconds() * float64(asked.BandwidthBitsPerSecond) / 8 / checkSegment
		rounds += math.Log2(math.Max(segments/10, 1))
	}
	return time.Duration(rounds*float64(asked.RTT)) + 50*time.Millisecond
}

// receiveRate reads for the time of warming up, then for the time of measuring, and returns the rate of the second.
func receiveRate(conn net.Conn, warm time.Duration) (int64, error) {
	buffer := make([]byte, 256<<10)
	begin := time.Now()
	var line slope
	received := 0.0
	for time.Since(begin) < warm+checkMeasure {
		n, err := conn.Read(buffer)
		if err != nil {
			return 0, err
		}
		received += float64(n)
		if at := time.Since(begin); at >= warm {
			line.add((at - warm).Seconds(), received)
		}
	}
	const perSegment = float64(linkMTU+ethernetHeader) / checkSegment
	return int64(line.value() * 8 * perSegment), nil
}

// slope fits a straight line to points by least squares. On a busy machine a reader is late now and then and finds
// more; that moves the line less than it moves the first or the last point.
type slope struct{ n, x, y, xx, xy float64 }

func (s *slope) add(x, y float64) {
	s.n++
	s.x += x
	s.y += y
	s.xx += x * x
	s.xy += x * y
}

func (s *slope) value() float64 {
	if d := s.n*s.xx - s.x*s.x; d > 0 {
		return (s.n*s.xy - s.x*s.y) / d
	}
	return 0
}
