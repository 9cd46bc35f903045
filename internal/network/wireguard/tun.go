package wireguard

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
)

// batchedTUN is a TUN device that reads and writes many packets at once. WireGuard hands packets from
// goroutine to goroutine, and to the network, in the batches in which they were read. The kernel segments
// the packets that it sends to the device. Received datagrams are joined, so that the kernel accepts a batch
// of them in one pass: see joiner.
type batchedTUN struct {
	name   string
	mtu    int
	file   *os.File
	raw    syscall.RawConn
	events chan tun.Event
	once   sync.Once

	writing sync.Mutex // WireGuard has a goroutine for each peer
	join    joiner
	vector  [][]byte
}

// tunQueue is the number of packets that the kernel queues while the process is not scheduled.
const tunQueue = 16384

// headerSize is the size of a packet's virtio_net_hdr (linux/virtio_net.h). WireGuard leaves space for it
// before each packet.
const headerSize = 10

// lengthen sets the length of the device's queue, which cannot be set when a TUN device is made.
func lengthen(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetTxQLen(link, tunQueue)
	}
	if err != nil {
		return fmt.Errorf("lengthen the queue of TUN device %s: %w", name, err)
	}
	return nil
}

// openTUN makes the device in this process's network namespace. The device vanishes when the process ends.
func openTUN(name string, mtu int) (*batchedTUN, error) {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	made := &netlink.Tuntap{LinkAttrs: attributes, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true, Queues: 1,
		Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE | netlink.TUNTAP_VNET_HDR}
	if err := netlink.LinkAdd(made); err != nil || len(made.Fds) == 0 {
		return nil, fmt.Errorf("make TUN device %s: %w", name, err)
	}
	t := &batchedTUN{name: name, mtu: mtu, file: made.Fds[0], events: make(chan tun.Event)}
	err := lengthen(name)
	if err == nil {
		t.raw, err = t.file.SyscallConn()
	}
	if err == nil {
		err = t.raw.Control(func(fd uintptr) { t.join.most = mostJoined(int(fd)) })
	}
	if err != nil {
		return nil, errors.Join(err, t.file.Close())
	}
	return t, nil
}

// mostJoined returns how many joined datagrams the kernel accepts. Linux 6.2 and later accept joined
// datagrams if they can also deliver joined datagrams to a reader. This reader does not ask for those.
func mostJoined(fd int) int {
	const most = 64 // UDP_MAX_SEGMENTS before Linux 6.9
	if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_USO4|unix.TUN_F_USO6) != nil {
		return 1
	}
	if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0) != nil {
		return 1
	}
	return most
}

// File is the device's descriptor.
func (t *batchedTUN) File() *os.File { return t.file }

// Read waits for a packet, and reads all available packets, up to a batch.
func (t *batchedTUN) Read(packets [][]byte, sizes []int, offset int) (int, error) {
	count := 0
	var failed error
	err := t.raw.Read(func(fd uintptr) (done bool) {
		for count < len(packets) && failed == nil {
			size, err := unix.Read(int(fd), packets[count][offset-headerSize:])
			switch {
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				return count > 0
			case err != nil:
				failed = err
			default:
				sizes[count] = max(size-headerSize, 0)
				count++
			}
		}
		return true
	})
	if count > 0 { // a read that has failed now fails the next time, too
		return count, nil
	}
	return 0, errors.Join(err, failed)
}

// Write writes packets. A packet that the kernel refuses does not affect the others.
func (t *batchedTUN) Write(packets [][]byte, offset int) (int, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	var failed error
	for from := 0; from < len(packets); {
		count := t.join.count(packets[from:], offset)
		if err := t.writeJoined(packets[from:from+count], offset); err != nil {
			failed = err
		}
		from += count
	}
	return len(packets), failed
}

// writeJoined writes datagrams that can be joined, or one packet.
func (t *batchedTUN) writeJoined(packets [][]byte, offset int) error {
	t.vector = append(t.vector[:0], packets[0][offset-headerSize:])
	clear(packets[0][offset-headerSize : offset])
	if len(packets) > 1 {
		joinHeaders(packets, offset)
		for _, packet := range packets[1:] {
			t.vector = append(t.vector, packet[offset+udpEnd:])
		}
	}
	var failed error
	err := t.raw.Write(func(fd uintptr) bool {
		for {
			if _, failed = unix.Writev(int(fd), t.vector); !errors.Is(failed, unix.EINTR) {
				return !errors.Is(failed, unix.EAGAIN)
			}
		}
	})
	return errors.Join(err, failed)
}

// MTU returns the MTU with which the device was made.
func (t *batchedTUN) MTU() (int, error) { return t.mtu, nil }

// Name of the device.
func (t *batchedTUN) Name() (string, error) { return t.name, nil }

// Events reports nothing: the agent brings the device up.
func (t *batchedTUN) Events() <-chan tun.Event { return t.events }

// BatchSize returns how many packets are read at once.
func (t *batchedTUN) BatchSize() int { return conn.IdealBatchSize }

// Close removes the device.
func (t *batchedTUN) Close() error {
	var err error
	t.once.Do(func() {
		close(t.events)
		err = t.file.Close()
	})
	return err
}
