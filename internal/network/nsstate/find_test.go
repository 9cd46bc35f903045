package nsstate

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// space is a network namespace with what an engine makes: eth0 with an address and a default route,
// and lo.
type space struct {
	t    *testing.T
	path string
}

var usual = Expected{
	Device: "eth0", Address: netip.MustParseAddr("10.9.0.2"), Gateway: netip.MustParseAddr("10.9.0.1"),
}

func newSpace(t *testing.T) space {
	t.Helper()
	s, peer := space{t, namespace(t)}, space{t, namespace(t)}
	pid := strings.Split(peer.path, "/")[2]
	s.run("ip link set lo up", "ip link add eth0 type veth peer name outside netns "+pid)
	peer.run("ip link set outside up")
	s.run("ip address add 10.9.0.2/24 dev eth0", "ip link set eth0 up", "ip route add default via 10.9.0.1",
		"ip neighbour add 10.9.0.1 lladdr 02:00:00:00:00:01 nud permanent dev eth0")
	return s
}

// namespace makes one that is there until the test ends.
func namespace(t *testing.T) string {
	t.Helper()
	keeper := exec.Command("sleep", "infinity")
	keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = keeper.Process.Kill()
		_ = keeper.Wait()
	})
	return fmt.Sprintf("/proc/%d/ns/net", keeper.Process.Pid)
}

// run runs commands in the namespace.
func (s space) run(lines ...string) {
	s.t.Helper()
	for _, line := range lines {
		out, err := exec.Command("nsenter", "--net="+s.path, "sh", "-c", line).CombinedOutput()
		if err != nil {
			s.t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
}

// found is all that is found, in one text.
func (s space) found(expected Expected) string {
	s.t.Helper()
	filters, err := Filters(s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	others, err := Others(s.t.Context(), s.path, expected)
	if err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	for _, f := range append(filters, others...) {
		lines = append(lines, f.What)
	}
	return strings.Join(lines, "\n")
}

// TestUsual finds nothing in what an engine makes, nor in what asking for rules leaves behind.
func TestUsual(t *testing.T) {
	s := newSpace(t)
	if found := s.found(usual); found != "" {
		t.Errorf("in a new namespace:\n%s", found)
	}
	s.run("iptables-legacy -t nat -L -n", "iptables-nft -t filter -L -n",
		"ip6tables-legacy -L -n", "ip6tables-nft -t nat -L -n")
	s.run("nft add table inet godwit") // as it is while a container arrives
	if found := s.found(usual); found != "" {
		t.Errorf("after rules were listed:\n%s", found)
	}
	s.run("ip route add 10.9.0.1/32 dev eth0")
	if found := s.found(usual); found != "" {
		t.Errorf("with a route to the gateway:\n%s", found)
	}
	s.run("ip route del 10.9.0.1/32 dev eth0")
	s.run("ip neighbour del 10.9.0.1 dev eth0")
	bridged := usual
	bridged.Gateway = netip.Addr{}
	if found := s.found(bridged); found != "route to default by 10.9.0.1 through eth0" {
		t.Errorf("with a gateway that is no address of this node:\n%s", found)
	}
}

// TestResolver finds nothing in the rules of Docker's resolver, and rules beside them.
func TestResolver(t *testing.T) {
	for _, program := range []string{"iptables-legacy", "iptables-nft"} {
		t.Run(program, func(t *testing.T) {
			s := newSpace(t)
			nat := program + " -t nat "
			s.run(nat+"-N DOCKER_OUTPUT", nat+"-N DOCKER_POSTROUTING",
				nat+"-A OUTPUT -d 127.0.0.11 -j DOCKER_OUTPUT",
				nat+"-A POSTROUTING -d 127.0.0.11 -j DOCKER_POSTROUTING",
				nat+"-A DOCKER_OUTPUT -d 127.0.0.11 -p udp --dport 53 -j DNAT --to 127.0.0.11:4711",
				nat+"-A DOCKER_POSTROUTING -s 127.0.0.11 -p udp --sport 4711 -j SNAT --to-source :53")
			if found := s.found(usual); found != "" {
				t.Errorf("of Docker's own:\n%s", found)
			}
			s.run(nat + "-A OUTPUT -d 127.0.0.12 -j DOCKER_OUTPUT")
			if found := s.found(usual); !strings.Contains(found, "nat") {
				t.Errorf("with a jump for another address: %q", found)
			}
			s.run(nat+"-D OUTPUT -d 127.0.0.12 -j DOCKER_OUTPUT",
				nat+"-A DOCKER_OUTPUT -d 10.0.0.1 -j DNAT --to-destination 127.0.0.1")
			if found := s.found(usual); !strings.Contains(found, "nat") {
				t.Errorf("with a rule in Docker's chain: %q", found)
			}
		})
	}
}

// TestMade makes one thing of each kind in a namespace, as a container with NET_ADMIN can.
func TestMade(t *testing.T) {
	for _, one := range [][2]string{
		{"nft add table inet killswitch", "nftables table inet killswitch"},
		{"nft add table netdev shaper", "nftables table netdev shaper"},
		{
			"nft add table ip nat; nft add chain ip nat OUTPUT; nft add rule ip nat OUTPUT drop",
			"nftables table ip nat",
		},
		{"iptables-nft -P OUTPUT DROP", "nftables table ip filter"},
		{"iptables-nft -N own", "nftables table ip filter"},
		{"ip6tables-nft -A OUTPUT -j DROP", "nftables table ip6 filter"},
		{"iptables-legacy -P OUTPUT DROP", "iptables table filter"},
		{"iptables-legacy -A OUTPUT ! -o tun0 -j REJECT", "iptables table filter"},
		{"iptables-legacy -t mangle -A OUTPUT -p tcp -j ECN --ecn-tcp-remove", "iptables table mangle"},
		{"iptables-legacy -t nat -N own", "iptables table nat"},
		{"ip6tables-legacy -P OUTPUT DROP", "ip6tables table filter"},
		{"ip6tables-legacy -A OUTPUT -d 2001:db8::/32 -j DROP", "ip6tables table filter"},
		{"ip link add br0 type bridge", "device br0 (bridge)"},
		{"ip link add a0 type veth peer name a1", "device a0 (veth)"},
		{"ip tuntap add tun0 mode tun", "device tun0 (tuntap)"},
		{"ip address add 10.9.0.3/24 dev eth0", "address 10.9.0.3/24 of device eth0"},
		{"ip address add 10.77.0.1/32 dev lo", "address 10.77.0.1/32 of device lo"},
		{"ip address add 2001:db8::1/64 dev eth0", "address 2001:db8::1/64 of device eth0"},
		{"ip address del 10.9.0.2/24 dev eth0", "address 10.9.0.2 of device eth0, which was removed"},
		{"ip route del default", "default route by 10.9.0.1, which was removed"},
		{"ip route replace default via 10.9.0.7", "route to default by 10.9.0.7 through eth0"},
		{"ip route add 10.77.0.0/16 via 10.9.0.1", "route to 10.77.0.0/16 by 10.9.0.1 through eth0"},
		{
			"ip route add 10.78.0.0/16 dev eth0 table 100",
			"route to 10.78.0.0/16 through eth0 in table 100",
		},
		{"ip route add blackhole 10.79.0.0/16", "blackhole route to 10.79.0.0/16"},
		{"ip -6 route add 2001:db8::/32 dev eth0", "route to 2001:db8::/32 through eth0"},
		{
			"ip route add local 0.0.0.0/0 dev lo table 100",
			"local route to default through lo in table 100",
		},
		{"ip rule add fwmark 0x1 table 100", "IPv4 routing rule 32765 for mark 0x1, table 100"},
		{
			"ip -6 rule add from 2001:db8::/32 table 100",
			"IPv6 routing rule 32765 from 2001:db8::/32, table 100",
		},
		{
			"ip neighbour add 10.9.0.9 lladdr 02:00:00:00:00:09 nud permanent dev eth0",
			"neighbour 10.9.0.9 of device eth0",
		},
		{
			"tc qdisc add dev eth0 root tbf rate 1mbit burst 32k latency 10ms",
			"traffic control tbf of device eth0",
		},
		{
			"ip xfrm policy add src 10.0.0.0/8 dst 10.77.0.0/16 dir out tmpl proto esp mode tunnel",
			"1 IPsec policies",
		},
		{
			"echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range",
			"net.ipv4.ping_group_range = 0 2147483647",
		},
		{
			"echo 1 > /proc/sys/net/ipv4/ip_forward; echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter",
			"net.ipv4.conf.all.rp_filter = 2",
		},
		{"echo 128 > /proc/sys/net/core/somaxconn", "net.core.somaxconn = 128"},
		{"echo 1 > /proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding = 1"},
	} {
		line, want := one[0], one[1]
		t.Run(line, func(t *testing.T) {
			s := newSpace(t)
			s.run(line)
			if found := s.found(usual); !strings.Contains(found, want) {
				t.Errorf("found %q, want %q", found, want)
			}
		})
	}
}

// TestSettings lets a setting be as the definition has it, and no other.
func TestSettings(t *testing.T) {
	s := newSpace(t)
	s.run("echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range")
	defined := usual
	defined.Settings = map[string]string{"net.ipv4.ping_group_range": "0\t2147483647", "kernel.msgmax": "1"}
	if found := s.found(defined); found != "" {
		t.Errorf("as defined:\n%s", found)
	}
	s.run("echo 5 6 > /proc/sys/net/ipv4/ping_group_range")
	if found := s.found(defined); !strings.Contains(found, "net.ipv4.ping_group_range = 5 6") {
		t.Errorf("otherwise than defined: %q", found)
	}
}

// TestMany bounds what is told.
func TestMany(t *testing.T) {
	s := newSpace(t)
	s.run("for i in $(seq 1 12); do ip address add 10.77.0.$i/32 dev lo; nft add table inet t$i; done")
	found := s.found(usual)
	if strings.Count(found, "\n") != 9 || strings.Count(found, ", and 7 more") != 2 {
		t.Errorf("found:\n%s", found)
	}
}

// TestGone finds nothing in the namespace of a process that has ended.
func TestGone(t *testing.T) {
	s := space{t, "/proc/999999999/ns/net"}
	if found := s.found(usual); found != "" {
		t.Errorf("found %q", found)
	}
}
