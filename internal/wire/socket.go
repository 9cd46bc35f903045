package wire

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/wire/stream"
)

// These bound how long a lost peer goes unnoticed: TCP_USER_TIMEOUT covers unanswered data, keepalive
// covers silence. Data connections wait longer, because TCP_USER_TIMEOUT also counts the time for which a
// slow receiver keeps its window shut (tcp_probe_timer in net/ipv4/tcp_timer.c).
const (
	controlTimeout = 15 * time.Second
	dataTimeout    = 45 * time.Second
)

// notSentBytes bounds the unsent data in the kernel. More would only delay later decisions: another codec,
// another rate, an abort, an answer to a ping.
const notSentBytes = 256 << 10

func keepAlive(timeout time.Duration) net.KeepAliveConfig {
	const probes = 3
	return net.KeepAliveConfig{Enable: true, Idle: timeout / (probes + 1), Interval: timeout / (probes + 1),
		Count: probes}
}

// tune sets the options of a socket. Go sets TCP_NODELAY itself.
func tune(tcp *net.TCPConn, timeout time.Duration) error {
	if err := tcp.SetKeepAliveConfig(keepAlive(timeout)); err != nil {
		return fmt.Errorf("set keepalive: %w", err)
	}
	return withFD(tcp, func(fd int) error {
		err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
		if err != nil {
			return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
		}
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentBytes)
		if err != nil {
			return fmt.Errorf("set TCP_NOTSENT_LOWAT: %w", err)
		}
		return nil
	})
}

func withFD(tcp *net.TCPConn, use func(fd int) error) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = use(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// Transport returns the kernel's view of the path to the peer.
func (c *Conn) Transport() (t stream.Transport, err error) {
	err = withFD(c.raw.TCPConn, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return fmt.Errorf("ask for TCP_INFO: %w", err)
		}
		t = stream.Transport{
			WindowBytes:           int64(info.Snd_cwnd) * int64(info.Snd_mss),
			ResentBytes:           int64(info.Bytes_retrans),
			SentBytes:             int64(info.Bytes_sent),
			DeliveredBytes:        int64(info.Delivered) * int64(info.Snd_mss),
			UnsentBytes:           int64(info.Notsent_bytes),
			RTT:                   time.Duration(info.Rtt) * time.Microsecond,
			DeliveryBitsPerSecond: float64(info.Delivery_rate) * 8,
			PacingBitsPerSecond:   float64(info.Pacing_rate) * 8,
			Busy:                  time.Duration(info.Busy_time) * time.Microsecond,
			Limited:               time.Duration(info.Rwnd_limited+info.Sndbuf_limited) * time.Microsecond,
		}
		return nil
	})
	return t, err
}

// steadyControl is the congestion control for paced bulk data. It does not take loss for congestion, as
// CUBIC does: at 10 Mbit/s, 100 ms and 1 % random loss, CUBIC reached 10 % of the link's bandwidth, and BBR
// 91 %.
const steadyControl = "bbr"

// Steady selects a congestion control that tolerates random loss. If the kernel has none, the default
// stays.
func (c *Conn) Steady() error {
	return withFD(c.raw.TCPConn, func(fd int) error {
		err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, steadyControl)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("set TCP_CONGESTION to %s: %w", steadyControl, err)
		}
		return nil
	})
}

// mostPaced is the highest rate given to the kernel, in bytes per second; above it, there is no limit.
const mostPaced = math.MaxInt32

// Pace limits the rate of sending. TCP itself paces, whatever the queueing discipline (tcp_internal_pacing
// in net/ipv4/tcp_output.c, since Linux 4.13).
func (c *Conn) Pace(bitsPerSecond float64) error {
	rate := -1 // no limit
	if bytes := bitsPerSecond / 8; bytes > 0 && bytes < mostPaced {
		rate = int(bytes)
	}
	return withFD(c.raw.TCPConn, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate); err != nil {
			return fmt.Errorf("set SO_MAX_PACING_RATE: %w", err)
		}
		return nil
	})
}

// Sysctl is a kernel setting that matters to data connections. It belongs to the network namespace.
type Sysctl struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Is   string `json:"is"`
	Why  string `json:"why"`
}

// Met reports whether the setting is as it should be.
func (s Sysctl) Met() bool { return s.Is == s.Want }

func (s Sysctl) path() string { return "/proc/sys/" + strings.ReplaceAll(s.Name, ".", "/") }

// Sysctls returns the settings that matter, with their values in the caller's network namespace.
func Sysctls() ([]Sysctl, error) {
	all := []Sysctl{
		{Name: "net.ipv4.tcp_slow_start_after_idle", Want: "0",
			Why: "a data connection that waited for longer than a retransmission timeout " +
				"would begin with a window of 14 KiB again, in the middle of a freeze"},
		{Name: "net.ipv4.tcp_no_metrics_save", Want: "1",
			Why: "a lossy moment on one connection would make the next " +
				"ones to the same node start slowly"},
	}
	for i := range all {
		data, err := os.ReadFile(all[i].path())
		if err != nil {
			return nil, fmt.Errorf("read sysctl %s: %w", all[i].Name, err)
		}
		all[i].Is = strings.TrimSpace(string(data))
	}
	return all, nil
}

// Set corrects the setting for the caller's whole network namespace.
func (s Sysctl) Set() error {
	if err := os.WriteFile(s.path(), []byte(s.Want), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", s.Name, s.Want, err)
	}
	return nil
}
