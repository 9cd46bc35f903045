package doctor

import (
	"context"
	"errors"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func networkChecks() []check {
	return []check{
		{
			name: "loopback", level: Required,
			lost:   "CRIU refuses to work in a network namespace whose loopback is down",
			advice: Advice{General: "ip link set lo up"},
			look: func(_ context.Context, m machine) finding {
				up, err := m.loopbackUp()
				switch {
				case err != nil:
					return unknown(err)
				case !up:
					return missing("it is down")
				}
				return found("", "")
			},
		},
		device("veth pairs", Required, "CONFIG_VETH", "containers have no network", func() error {
			return addLink(&netlink.Veth{LinkAttrs: attributes(), PeerName: "peer"})
		}),
		device("VXLAN tunnels", Required, "CONFIG_VXLAN",
			"containers on different nodes cannot reach each other", func() error {
				return addLink(&netlink.Vxlan{LinkAttrs: attributes(), VxlanId: 1, Port: 4789})
			}),
		device("WireGuard in the kernel", Optional, "CONFIG_WIREGUARD",
			"packets of containers are encrypted between nodes by a process, which takes more of the "+
				"processor", func() error {
				return addLink(&netlink.Wireguard{LinkAttrs: attributes()})
			}),
		device("TUN devices", Required, "CONFIG_TUN", "packets cannot be held while a container moves",
			func() error {
				return addLink(&netlink.Tuntap{
					LinkAttrs: attributes(), Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI,
					NonPersist: true, Queues: 1,
				})
			}),
		device("nftables", Optional, "CONFIG_NF_TABLES",
			"engines other than the embedded one cannot publish ports by nftables", addTable),
		device("netem", Optional, "CONFIG_NET_SCH_NETEM",
			"the lab's links are delayed by a program of Godwit's own, which needs more CPU time", addNetem),
		{
			name: "IPv4 forwarding", level: Recommended,
			lost:   "containers reach nothing outside of their node until the agent has switched it on",
			advice: Advice{General: "sysctl -w net.ipv4.ip_forward=1 (the agent does it when it starts)"},
			look: func(_ context.Context, m machine) finding {
				value, err := m.readFile("/proc/sys/net/ipv4/ip_forward")
				switch {
				case err != nil:
					return unknown(err)
				case strings.TrimSpace(string(value)) != "1":
					return missing("it is off")
				}
				return found("", "")
			},
		},
	}
}

// device returns a check that tries something in a private network namespace, which vanishes with its
// contents.
func device(name string, level Level, option, lost string, try func() error) check {
	return check{
		name: name, level: level, lost: lost,
		advice: Advice{
			Debian: "Debian's and Ubuntu's kernels have it as a module: apt-get install " +
				"linux-image-amd64 or linux-generic",
			General: "run a kernel with " + option,
		},
		look: func(_ context.Context, m machine) finding {
			err := m.inNamespace(try)
			switch {
			case err == nil:
				return found("", "")
			case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
				return unknown(err)
			}
			return missing(err.Error())
		},
	}
}

func attributes() netlink.LinkAttrs {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "doctor"
	return attributes
}

func addLink(link netlink.Link) error {
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	if tun, ok := link.(*netlink.Tuntap); ok {
		for _, file := range tun.Fds {
			file.Close()
		}
	}
	return nil
}

func addTable() error {
	connection, err := nftables.New()
	if err != nil {
		return err
	}
	connection.AddTable(&nftables.Table{Name: "doctor", Family: nftables.TableFamilyINet})
	return connection.Flush()
}

func addNetem() error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.QdiscAdd(netlink.NewNetem(
		netlink.QdiscAttrs{LinkIndex: loopback.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
			Parent: netlink.HANDLE_ROOT},
		netlink.NetemQdiscAttrs{Latency: 1000},
	))
}
