package wireguard

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// inKernel is a device of the kernel.
type inKernel struct {
	name   string
	client *wgctrl.Client
}

// openKernel opens the kernel's interface to a device. Its socket belongs to the network namespace of the
// calling thread.
func openKernel(config Config) (*inKernel, error) {
	k := &inKernel{name: config.Name}
	err := config.Within(func() (err error) {
		k.client, err = wgctrl.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the kernel's WireGuard: %w", err)
	}
	return k, nil
}

func (k *inKernel) get() (State, error) {
	device, err := k.client.Device(k.name)
	if err != nil {
		return State{}, fmt.Errorf("read the configuration of %s: %w", k.name, err)
	}
	state := State{Private: Key(device.PrivateKey), Port: device.ListenPort}
	for _, one := range device.Peers {
		peer := Peer{Key: Key(one.PublicKey)}
		if one.Endpoint != nil {
			endpoint := one.Endpoint.AddrPort()
			peer.Endpoint = netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())
		}
		if len(one.AllowedIPs) == 1 {
			address, _ := netip.AddrFromSlice(one.AllowedIPs[0].IP)
			peer.Address = address.Unmap()
		}
		state.Peers = append(state.Peers, peer)
	}
	return state, nil
}

func (k *inKernel) set(c change) error {
	config := wgtypes.Config{ListenPort: c.port}
	if c.private != nil {
		key := wgtypes.Key(*c.private)
		config.PrivateKey = &key
	}
	for _, key := range c.remove {
		config.Peers = append(config.Peers, wgtypes.PeerConfig{PublicKey: wgtypes.Key(key), Remove: true})
	}
	for _, peer := range c.set {
		every, bits := keepalive*time.Second, peer.Address.BitLen()
		one := wgtypes.PeerConfig{
			PublicKey: wgtypes.Key(peer.Key), ReplaceAllowedIPs: true, PersistentKeepaliveInterval: &every,
			AllowedIPs: []net.IPNet{{IP: peer.Address.AsSlice(), Mask: net.CIDRMask(bits, bits)}},
		}
		if peer.Endpoint.IsValid() {
			one.Endpoint = net.UDPAddrFromAddrPort(peer.Endpoint)
		}
		config.Peers = append(config.Peers, one)
	}
	if err := k.client.ConfigureDevice(k.name, config); err != nil {
		return fmt.Errorf("configure %s: %w", k.name, err)
	}
	return nil
}

func (k *inKernel) close() error { return k.client.Close() }
