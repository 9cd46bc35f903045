package lab

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/units"
)

// pair opens a TCP connection between two machines.
func (m meter) pair(
	ctx context.Context, from, to *machine, control func(fd int) error,
) (dialled, accepted net.Conn, err error) {
	listener, err := m.listenWith(ctx, to, control)
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	dialled, err = m.lab.Dial(ctx, from.Name, "tcp4", listener.Addr().String())
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

func (m meter) listenWith(
	ctx context.Context, at *machine, control func(fd int) error,
) (listener net.Listener, err error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = control(int(fd)) })
		return errors.Join(err, failed)
	}}
	config.SetMultipathTCP(false)
	err = m.lab.InNetwork(at.Name, func() error {
		listener, err = config.Listen(ctx, "tcp4", netip.AddrPortFrom(at.address(), 0).String())
		return err
	})
	return listener, err
}

func (m meter) measureRTT(ctx context.Context, a, b *machine) (time.Duration, error) {
	dialled, accepted, err := m.pair(ctx, a, b, func(int) error { return nil })
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

// measureRate sends for a short time and returns the rate on the wire. The receiver's window keeps the
// sender from filling the queue until packets are lost, so that this measures the link and not TCP's
// recovery.
func (m meter) measureRate(ctx context.Context, from, to *machine, asked Link) (int64, error) {
	window := receiveWindow(asked)
	sending, receiving, err := m.pair(ctx, from, to, func(fd int) error {
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
	measuring := min(max(checkMeasure, wireTime(asked, checkSegments*linkMTU)), checkLongest)
	return receiveRate(receiving, warmUp(asked), measuring)
}

func send(conn net.Conn) {
	block := make([]byte, 64<<10)
	for {
		if _, err := conn.Write(block); err != nil {
			return // closed by the receiver after the measurement
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

// receiveWindow holds the bytes under way and half of the queue. The kernel uses half of a socket's buffer,
// or less, for data.
func receiveWindow(asked Link) int {
	bandwidth := float64(asked.BandwidthBitsPerSecond)
	if asked.BandwidthBitsPerSecond == units.Unlimited {
		bandwidth = 2e9
	}
	underWay := (asked.RTT + minQueueTime/2).Seconds() * bandwidth / 8
	return int(min(max(underWay, minQueueBytes*3/4), 64<<20))
}

// warmUp returns how long TCP needs to reach full speed: slow start doubles each round trip from ten
// segments.
func warmUp(asked Link) time.Duration {
	rounds := 2.0
	if asked.BandwidthBitsPerSecond != units.Unlimited {
		segments := asked.RTT.Seconds() * float64(asked.BandwidthBitsPerSecond) / 8 / checkSegment
		rounds += math.Log2(math.Max(segments/10, 1))
	}
	return time.Duration(rounds*float64(asked.RTT)) + 50*time.Millisecond + wireTime(asked, 4*linkMTU)
}

// receiveRate reads for the time of warming up, then for the time of measuring, and returns the rate of the
// second part.
func receiveRate(conn net.Conn, warm, measuring time.Duration) (int64, error) {
	buffer := make([]byte, 256<<10)
	begin := time.Now()
	var line slope
	received := 0.0
	for time.Since(begin) < warm+measuring {
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

// slope fits a straight line to points by least squares. On a busy machine a reader is sometimes late and
// then finds more data; that moves the line less than it moves the first or the last point.
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
