package wireguard

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/tun"
)

// plainTUN is a TUN device without offloads. What the overlay carries is in VXLAN, which a TUN device cannot segment, and
// to join datagrams that have come would hide all inner headers but the first from the packet filter.
type plainTUN struct {
	name   string
	mtu    int
	file   *os.File
	events chan tun.Event
	once   sync.Once
}

// tunQueue is how many packets the kernel keeps for the process while it is not scheduled.
const tunQueue = 16384

// lengthen gives the device that queue. It is not among what a TUN device is made with.
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

// openTUN makes the device in this process's network namespace. It is gone when the process ends.
func openTUN(name string, mtu int) (*plainTUN, error) {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	made := &netlink.Tuntap{LinkAttrs: attributes, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true, Queues: 1,
		Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE}
	if err := netlink.LinkAdd(made); err != nil || len(made.Fds) == 0 {
		return nil, fmt.Errorf("make TUN device %s: %w", name, err)
	}
	if err := lengthen(name); err != nil {
		return nil, errors.Join(err, made.Fds[0].Close())
	}
	return &plainTUN{name: name, mtu: mtu, file: made.Fds[0], events: make(chan tun.Event)}, nil
}

// File is the device's descriptor.
func (t *plainTUN) File() *os.File { return t.file }

// Read reads one packet.
func (t *plainTUN) Read(packets [][]byte, sizes []int, offset int) (int, error) {
	count, err := t.file.Read(packets[0][offset:])
	if err != nil {
		return 0, err
	}
	sizes[0] = count
	return 1, nil
}

// Write writes packets. One that the kernel does not take keeps none of the others from it.
func (t *plainTUN) Write(packets [][]byte, offset int) (int, error) {
	var failed error
	written := 0
	for _, packet := range packets {
		if _, err := t.file.Write(packet[offset:]); err != nil {
			failed = err
			continue
		}
		written++
	}
	return written, failed
}

// MTU is that with which the device is made.
func (t *plainTUN) MTU() (int, error) { return t.mtu, nil }

// Name of the device.
func (t *plainTUN) Name() (string, error) { return t.name, nil }

// Events tells of nothing: the agent brings the device up.
func (t *plainTUN) Events() <-chan tun.Event { return t.events }

// BatchSize is how many packets are read at once.
func (t *plainTUN) BatchSize() int { return 1 }

// Close removes the device.
func (t *plainTUN) Close() error {
	var err error
	t.once.Do(func() {
		close(t.events)
		err = t.file.Close()
	})
	return err
}
