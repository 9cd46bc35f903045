package wireguard

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Way says whether the kernel or a process encrypts.
type Way string

// The ways. Auto uses the kernel where it has WireGuard.
const (
	Auto      Way = "auto"
	Kernel    Way = "kernel"
	Userspace Way = "userspace"
)

// Config of a device.
type Config struct {
	Name   string
	Way    Way
	Links  *netlink.Handle              // of the network namespace in which it is
	Within func(run func() error) error // runs a function in that namespace
	MTU    int
	Group  int
	Socket string // of the process, if a process encrypts
	Log    string // file for errors that the process cannot report otherwise
}

// way is an existing device.
type way interface {
	get() (State, error)
	set(c change) error
	close() error
}

// Device is the WireGuard device of a node. It exists only while it has a peer. Calls must not overlap.
type Device struct {
	config Config
}

// New describes a device and makes nothing.
func New(config Config) *Device { return &Device{config: config} }

// Apply brings the device into the wanted state: configured and up, or removed if it has no peers.
// It recreates a device that is gone, for example because its process has ended.
func (d *Device) Apply(want State) error {
	if len(want.Peers) == 0 {
		return d.Remove()
	}
	w, err := d.ensure()
	if err != nil {
		return err
	}
	have, err := w.get()
	if err == nil {
		if c := difference(have, want); !c.isNothing() {
			err = w.set(c)
		}
	}
	if err := errors.Join(err, w.close()); err != nil {
		return err
	}
	return d.bringUp()
}

// bringUp sets the device's link attributes and brings it up.
func (d *Device) bringUp() error {
	link, err := d.config.Links.LinkByName(d.config.Name)
	if err != nil {
		return fmt.Errorf("find device %s: %w", d.config.Name, err)
	}
	links := d.config.Links
	err = errors.Join(links.LinkSetGroup(link, d.config.Group), links.LinkSetMTU(link, d.config.MTU),
		links.LinkSetUp(link))
	if err != nil {
		return fmt.Errorf("configure device %s: %w", d.config.Name, err)
	}
	return nil
}

// Current returns the way in use, or "" if there is no device.
func (d *Device) Current() (Way, error) {
	link, err := d.config.Links.LinkByName(d.config.Name)
	if isNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for device %s: %w", d.config.Name, err)
	}
	if link.Type() == kernelKind {
		return Kernel, nil
	}
	return Userspace, nil
}

// Peers returns the peers of the device: none if it does not exist or must be recreated.
func (d *Device) Peers() ([]Peer, error) {
	w, err := d.find()
	if w == nil || err != nil {
		return nil, err
	}
	state, err := w.get()
	return state.Peers, errors.Join(err, w.close())
}

// kernelKind is the kernel's name for this kind of device.
const kernelKind = "wireguard"

// find opens the existing device. It returns nil if there is no usable device.
func (d *Device) find() (way, error) {
	current, err := d.Current()
	switch {
	case err != nil || current == "":
		return nil, err
	case d.config.Way != Auto && current != d.config.Way:
		return nil, nil //nolint:nilnil // the device must be recreated
	case current == Kernel:
		return openKernel(d.config)
	}
	p, err := openProcess(d.config)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // the same
	}
	return p, nil
}

// ensure opens the device, and makes it if it does not exist.
func (d *Device) ensure() (way, error) {
	w, err := d.find()
	if w != nil || err != nil {
		return w, err
	}
	if err := d.Remove(); err != nil {
		return nil, err
	}
	if d.config.Way == Userspace {
		return startProcess(d.config)
	}
	err = d.makeInKernel()
	switch {
	case err == nil:
		return openKernel(d.config)
	case d.config.Way == Auto && IsMissing(err):
		return startProcess(d.config)
	}
	return nil, fmt.Errorf("make the kernel's WireGuard device %s: %w", d.config.Name, err)
}

func (d *Device) makeInKernel() error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU, attributes.Group = d.config.Name, d.config.MTU, uint32(d.config.Group)
	return d.config.Links.LinkAdd(&netlink.Wireguard{LinkAttrs: attributes})
}

// IsMissing reports whether an error means that the kernel has no WireGuard (rtnl_newlink: unknown
// kind of link).
func IsMissing(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

// Remove removes the device. If a process runs the device, Remove waits until the process has ended. A
// missing device is no error. If somebody else has removed it, its process may still be ending, so Remove
// waits then, too: the process removes its socket last, and must not remove the next process's socket.
func (d *Device) Remove() error {
	await := watchEnd(d.config.Socket)
	link, err := d.config.Links.LinkByName(d.config.Name)
	if isNotFound(err) {
		_ = await() // a process that hangs must not block the next one
		return nil
	}
	if err == nil {
		err = d.config.Links.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove device %s: %w", d.config.Name, err)
	}
	return await()
}

// isNotFound distinguishes a missing device from a failed lookup.
func isNotFound(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}
