package nsstate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	godwit "github.com/godwit/godwit/internal/network"
)

// space is a network namespace as an engine makes it: lo, and eth0 with an address and a default route.
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

// namespace makes a network namespace that exists until the test ends.
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

// found returns all findings in one text.
func (s space) found(expected Expected) string {
	s.t.Helper()
	filters, err := Filters(s.t.Context(), s.path)
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

// TestUsual checks that the engine's own objects are no findings, nor the tables that listing rules
// creates.
func TestUsual(t *testing.T) {
	s := newSpace(t)
	if found := s.found(usual); found != "" {
		t.Errorf("in a new namespace:\n%s", found)
	}
	s.run("iptables-legacy -t nat -L -n", "iptables-nft -t filter -L -n",
		"ip6tables-legacy -L -n", "ip6tables-nft -t nat -L -n")
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

// TestStaleLook checks that a change on the node since the last look at a new namespace is not blamed on
// the container.
func TestStaleLook(t *testing.T) {
	s := newSpace(t)
	stale, err := recent(true)
	if err != nil {
		t.Fatal(err)
	}
	stale.settings = maps.Clone(stale.settings)
	stale.settings["ipv4/ip_default_ttl"] = "63"
	lastLook.Lock()
	lastLook.fresh, lastLook.at = stale, time.Now()
	lastLook.Unlock()
	if found := s.found(usual); found != "" {
		t.Errorf("found %s", found)
	}
}

// TestResolver checks that the rules of Docker's resolver are no findings, and that rules beside them are.
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

// TestNftablesResolver does the same with Docker's nftables backend, which has a table of its own.
func TestNftablesResolver(t *testing.T) {
	s := newSpace(t)
	const to = "nft add rule ip docker-dns dns-dnat ip daddr 127.0.0.11 "
	s.run("nft add table ip docker-dns",
		"nft add chain ip docker-dns dns-dnat '{ type nat hook output priority -100; }'",
		to+"udp dport 53 counter dnat to 127.0.0.11:4711", to+"tcp dport 53 counter dnat to 127.0.0.11:4712",
		"nft add chain ip docker-dns dns-snat '{ type nat hook postrouting priority srcnat; }'",
		"nft add rule ip docker-dns dns-snat ip saddr 127.0.0.11 udp sport 4711 counter snat to :53")
	if found := s.found(usual); found != "" {
		t.Errorf("of Docker's own:\n%s", found)
	}
	for _, one := range [][2]string{
		{"add rule ip docker-dns dns-dnat drop", "flush chain ip docker-dns dns-dnat"},
		{"add chain ip docker-dns own", "delete chain ip docker-dns own"},
		{
			"chain ip docker-dns dns-snat '{ policy drop; }'",
			"chain ip docker-dns dns-snat '{ policy accept; }'",
		},
		{"add table ip6 docker-dns", "delete table ip6 docker-dns"},
	} {
		s.run("nft " + one[0])
		if found := s.found(usual); !strings.Contains(found, "docker-dns") {
			t.Errorf("after nft %s: %q", one[0], found)
		}
		s.run("nft " + one[1])
	}
}

// TestOwnTables distinguishes Godwit's tables from others with the same name.
func TestOwnTables(t *testing.T) {
	s := newSpace(t)
	if err := godwit.BlockNamespace(s.path); err != nil {
		t.Fatal(err)
	}
	if found := s.found(usual); found != "" {
		t.Errorf("of Godwit's own:\n%s", found)
	}
	for _, line := range []string{
		"nft add rule inet godwit leaving oifname tun0 accept",
		"nft add chain inet godwit out '{ type filter hook output priority 0; policy drop; }'",
		"nft add chain inet godwit leaving '{ type filter hook output priority 0; policy drop; }'",
		"nft add table arp godwit; nft add chain arp godwit own",
	} {
		s := newSpace(t)
		if strings.Contains(line, "rule") {
			if err := godwit.BlockNamespace(s.path); err != nil {
				t.Fatal(err)
			}
		} else {
			s.run("nft add table inet godwit")
		}
		s.run(line)
		if found := s.found(usual); !strings.Contains(found, "godwit") {
			t.Errorf("after %s: %q", line, found)
		}
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
			"IPsec",
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

// TestSettings accepts a setting with the definition's value, and no other.
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

// TestReadOnly checks that settings inherited from the node are no findings if the container cannot write
// them.
func TestReadOnly(t *testing.T) {
	s := newSpace(t)
	s.run("echo 1 > /proc/sys/net/ipv4/ip_forward", "echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter",
		"echo 0 > /proc/sys/net/ipv6/conf/all/accept_ra")
	readOnly := usual
	readOnly.ReadOnly = true
	if found := s.found(readOnly); found != "" {
		t.Errorf("of the node:\n%s", found)
	}
	if found := s.found(usual); strings.Count(found, "\n") < 2 {
		t.Errorf("where the container can write: %q", found)
	}
	s.run("echo 5 6 > /proc/sys/net/ipv4/ping_group_range")
	if found := s.found(readOnly); found != "net.ipv4.ping_group_range = 5 6" {
		t.Errorf("of no node: %q", found)
	}
}

// TestTooLong checks that lists over the limit are findings, and are not read to their end.
func TestTooLong(t *testing.T) {
	const each = "for i in $(seq 0 %d); do seq -f \"%s\" 0 255; done | ip -batch -"
	for _, one := range []struct{ line, want string }{
		{fmt.Sprintf(each, 3, "route add blackhole 10.77.$i.%.0f/32"), ""},
		{fmt.Sprintf(each, 16, "route add blackhole 10.77.$i.%.0f/32"), routes},
		{fmt.Sprintf(each, 16, "address add 10.77.$i.%.0f/32 dev lo"), addresses},
		{
			"nft add table ip nat; nft add chain ip nat INPUT; " +
				"seq -f 'add rule ip nat INPUT mark %.0f' 4200 | nft -f -",
			"nftables rules",
		},
	} {
		s := newSpace(t)
		s.run(one.line)
		found := s.found(usual)
		is := strings.Contains(found, "more "+one.want+" than Godwit looks at")
		if is != (one.want != "") {
			t.Errorf("after %s: %q", one.line, found)
		}
	}
}

// TestEnded checks that the search stops when its context ends.
func TestEnded(t *testing.T) {
	s := newSpace(t)
	ctx, end := context.WithCancel(t.Context())
	end()
	if _, err := Filters(ctx, s.path); !errors.Is(err, context.Canceled) {
		t.Errorf("filters: %v", err)
	}
	if _, err := Others(ctx, s.path, usual); !errors.Is(err, context.Canceled) {
		t.Errorf("others: %v", err)
	}
}

// TestRekeying checks that two looks give the same finding, although the number of policies and keys has
// changed between them.
func TestRekeying(t *testing.T) {
	s := newSpace(t)
	const policy = "ip xfrm policy add src 10.0.0.0/8 dst 10.77.%d.0/24 dir out tmpl proto esp mode tunnel"
	s.run(fmt.Sprintf(policy, 1))
	before := s.found(usual)
	s.run(fmt.Sprintf(policy, 2))
	if after := s.found(usual); before != "IPsec" || after != before {
		t.Errorf("%q, then %q", before, after)
	}
}

// TestMany checks that the number of findings is bounded.
func TestMany(t *testing.T) {
	s := newSpace(t)
	s.run("for i in $(seq 1 12); do ip address add 10.77.0.$i/32 dev lo; nft add table inet t$i; done")
	found := s.found(usual)
	if strings.Count(found, "\n") != 9 || strings.Count(found, ", and more") != 2 {
		t.Errorf("found:\n%s", found)
	}
}

// TestGone checks that nothing is found in the namespace of a process that has ended.
func TestGone(t *testing.T) {
	s := space{t, "/proc/999999999/ns/net"}
	if found := s.found(usual); found != "" {
		t.Errorf("found %q", found)
	}
}
