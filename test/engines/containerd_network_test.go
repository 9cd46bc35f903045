package engines

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
)

// cniSubnet is the subnet of the tests' network, and cniList its list of plugins, on node b with a part of
// the subnet that b assigns.
const (
	cniPart   = `"rangeStart":"172.29.0.100",`
	cniSubnet = "172.29.0.0/24"
	// of host-local: the last assigned address
	cniTurn = "/var/lib/cni/networks/" + networkName + "/last_reserved_ip.0"
	cniFile = "/etc/cni/net.d/10-" + networkName + ".conflist"
	cniList = `{"cniVersion":"0.4.0","name":"` + networkName + `","plugins":[
		{"type":"bridge","bridge":"cni-birds","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{` + cniPart + `"subnet":"` + cniSubnet + `"}]]}},
		{"type":"firewall"},{"type":"tuning"},{"type":"portmap","capabilities":{"portMappings":true}}]}`
)

// makeCNI makes the network on both nodes. Docker, which is also there, drops packets of networks that it
// does not know: like the administrator of such a node, the test allows packets to the network.
func makeCNI(t *testing.T) {
	t.Helper()
	rule := []string{"DOCKER-USER", "--destination", cniSubnet, "--jump", "ACCEPT"}
	for _, node := range nodes() {
		list := cniList
		if node == "a" {
			list = strings.Replace(list, cniPart, "", 1)
		}
		in(t, node, "sh", "-c", "echo '"+list+"' >"+cniFile)
		in(t, node, append([]string{"iptables", "--wait", "--insert"}, rule...)...)
	}
	t.Cleanup(func() {
		for _, node := range nodes() {
			_, _ = world.lab.Exec(context.Background(), node, "sh", "-c",
				"rm -f "+cniFile+"; ip link del cni-birds")
			_, _ = world.lab.Exec(context.Background(), node,
				append([]string{"iptables", "--wait", "--delete"}, rule...)...)
		}
	})
}

// noCNI checks that plugins have left nothing of a network's containers on a node.
func noCNI(t *testing.T, node string) {
	t.Helper()
	eventually(t, "nothing is left of the container's network on "+node, func() bool {
		left := in(t, node, "sh", "-c", `ls /var/lib/cni/networks/`+networkName+` /var/lib/cni/results /var/lib/godwit/engines/containerd-networks 2>/dev/null | grep -e ^172 -e eth0 -e json
			iptables-save | grep -e 'host 172\.29' -e '172\.29\.0\.[0-9]*/32'
			ip -o link show master cni-birds 2>/dev/null; true`)
		return left == ""
	})
}

// cniAddress returns the address and the hardware address of a container's interface.
func cniAddress(t *testing.T, node, id string) (address, mac string) {
	t.Helper()
	fields := strings.Fields(ctrExec(t, node, id, "/bin/busybox", "ip", "-o", "address", "show", "eth0"))
	if len(fields) < 4 {
		t.Fatalf("eth0 of %s: %q", id, fields)
	}
	address, _, _ = strings.Cut(fields[3], "/")
	return address, ctrExec(t, node, id, "/bin/cat", "/sys/class/net/eth0/address")
}

// ctrExec runs a command that prints something. ctr sometimes ends before it has read the output of a short
// command, so ctrExec repeats a command without output.
func ctrExec(t *testing.T, node, id string, command ...string) (said string) {
	t.Helper()
	eventually(t, "output of "+command[0], func() bool {
		said = in(t, node, append([]string{"ctr", "task", "exec", "--exec-id", "asked", id}, command...)...)
		return said != ""
	})
	return said
}

// TestContainerdNetwork: a container on a CNI bridge keeps its addresses and all its connections, whoever
// opened them, there and back, and plugins keep nothing of it on a node that it has left.
func TestContainerdNetwork(t *testing.T) {
	makeClients(t)
	makeCNI(t)
	inbound, err := world.lab.Listen(t.Context(), clientMachine, "tcp", ":9000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inbound.Close() })
	name := ctr(t, "default", []string{"--cni", "--env", "CALLS=" + addressOf(t, clientMachine)}, echo)
	conn, err := inbound.Accept()
	if err != nil {
		t.Fatal(err)
	}
	called := &conversation{name: "called", conn: conn, answers: bufio.NewReader(conn)}
	address, mac := cniAddress(t, "a", name)
	in(t, "b", "sh", "-c", "mkdir -p $(dirname "+cniTurn+"); printf 172.29.0.150 >"+cniTurn)
	at := net.JoinHostPort(address, "80")
	busy := talk(t, clientMachine, at)
	all := []*conversation{busy, talk(t, clientMachine, at), called}
	modes := []string{"pre-copy", "cold"}
	if !testing.Short() {
		modes = append(modes, "post-copy", "hybrid")
	}
	from, to := "a", "b"
	for i, mode := range modes {
		if i == 1 {
			fault(t, to, agent.Fault{Side: "target", Step: "restore", When: "before"}, agent.FaultFail)
			whileTalking(t, busy, func() {
				err := tried(t, from, "godwit", "migrate", "--mode", mode, "containerd:"+name, to)
				if err == nil || !strings.Contains(err.Error(), "on purpose") {
					t.Errorf("%v, want the failure that the fault makes", err)
				}
			})
			noCNI(t, to) // this takes effect before the next check
			ctrNothing(t, to, "default")
		}
		pause := whileTalking(t, busy,
			func() { in(t, from, "godwit", "migrate", "--mode", mode, "containerd:"+name, to) })
		t.Logf("%s from %s to %s: the client waited %s", mode, from, to, pause)
		ctrNothing(t, from, "default")
		noCNI(t, from)
		from, to = to, from
		if address, has := cniAddress(t, from, name); net.JoinHostPort(address, "80") != at || has != mac {
			t.Errorf("it has %s and %s, had %s and %s", address, has, at, mac)
		}
		all = append(all, talk(t, clientMachine, at))
		if from == "b" {
			all = append(all, talk(t, otherMachine, at))
			if last := in(t, "b", "cat", cniTurn); last != "172.29.0.150" {
				t.Errorf("host-local goes on from %s: it was at 172.29.0.150, and gives addresses of "+
					"containers that have left", last)
			}
		}
		for _, one := range all {
			one.ask(t)
		}
	}
	removeByCtr(t, from, name)
	for _, node := range nodes() {
		noCNI(t, node)
		ctrNothing(t, node, "default")
		forgotten(t, node)
	}
}

// removeByCtr removes a container with ctr, which does not call plugins.
func removeByCtr(t *testing.T, node, name string) {
	t.Helper()
	in(t, node, "ctr", "task", "kill", "--signal", "KILL", name)
	eventually(t, "ctr can remove it",
		func() bool { return tried(t, node, "ctr", "task", "rm", name) == nil })
	in(t, node, "ctr", "containers", "rm", name)
}

// TestContainerdNetworkStays: a container that cannot move is refused with the reason and a remedy, and
// keeps running.
func TestContainerdNetworkStays(t *testing.T) {
	makeCNI(t)
	name := ctr(t, "default", []string{"--cni"}, echo)
	address, _ := cniAddress(t, "a", name)
	refused := func(container string, words ...string) {
		t.Helper()
		said := in(t, "a", "sh", "-c", "! godwit migrate --dry-run containerd:"+container+" b 2>&1")
		for _, word := range words {
			if !strings.Contains(said, word) {
				t.Errorf("%s, want a refusal because of %s", said, word)
			}
		}
	}
	const taker = "taker"
	t.Cleanup(func() {
		_, _ = world.lab.Exec(context.Background(), "b", "godwit", "rm", "--force", "containerd:"+taker)
	})
	in(t, "b", "sed", "-i", "s/"+cniPart+"//", cniFile)
	// the next address is that one
	in(t, "b", "sh", "-c", "printf "+netip.MustParseAddr(address).Prev().String()+" >"+cniTurn)
	in(t, "b", "ctr", "run", "--detach", "--cni", ctrImage, taker, "/bin/sh", "-c", count)
	refused(name, "address "+address, "default-"+taker)
	in(t, "b", "godwit", "rm", "--force", "containerd:"+taker)
	noCNI(t, "b")
	in(t, "b", "sed", "-i", `s/"tuning"/"tuning","sysctl":{"net.ipv4.no_such":"1"}/`, cniFile)
	if err := tried(t, "a", "godwit", "migrate", "containerd:"+name, "b"); err == nil ||
		!strings.Contains(err.Error(), "no_such") {
		t.Errorf("%v, want that plugin tuning fails", err)
	}
	noCNI(t, "b")
	ctrNothing(t, "b", "default")
	in(t, "b", "sed", "-i", "s/172.29.0.0/172.29.0.0\\/25/; s/25.24/25/", cniFile)
	refused(name, "network "+networkName+" of CNI", cniSubnet)
	in(t, "b", "rm", cniFile)
	refused(name, "network "+networkName+" of CNI", "copy its conflist", cniSubnet)
	own := talk(t, "a", net.JoinHostPort(address, "80"))
	refused(name, "connection with 172.29.0.1:")
	_ = own.conn.Close()
	in(t, "a", "sh", "-c",
		`echo '{"cniVersion":"0.4.0","name":"alone","plugins":[{"type":"ptp","ipam":{"type":"host-local","subnet":"172.29.1.0/24"}}]}' >/etc/cni/net.d/05-alone.conflist`)
	t.Cleanup(func() {
		_, _ = world.lab.Exec(context.Background(), "a", "rm",
			"/etc/cni/net.d/05-alone.conflist")
	})
	const alone = "alone"
	t.Cleanup(func() {
		_, _ = world.lab.Exec(context.Background(), "a", "godwit", "rm", "--force", "containerd:"+alone)
	})
	in(t, "a", "ctr", "run", "--detach", "--cni", ctrImage, alone, "/bin/sh", "-c", count)
	refused(alone, "network alone of CNI", "plugin ptp")
	ctrCounted(t, "a", name, ctrCounted(t, "a", name, 1))
}

// TestContainerdNetworkKilled: agents that are killed during a move cost none of the container's
// connections, and nothing of its network is left on the other node; nor on its old node, when ctr, which
// does not call plugins, has removed it.
func TestContainerdNetworkKilled(t *testing.T) {
	if testing.Short() { // like containers without a network
		return
	}
	makeClients(t)
	makeCNI(t)
	name := ctr(t, "default", []string{"--cni"}, echo)
	address, _ := cniAddress(t, "a", name)
	busy := talk(t, clientMachine, net.JoinHostPort(address, "80"))
	for _, f := range []agent.Fault{
		{Side: "target", Step: "arrive", When: "after"}, {Side: "target", Step: "receive", When: "after"},
		{Side: "source", Step: "destroy", When: "before"},
	} {
		node := map[string]string{"source": "a", "target": "b"}[f.Side]
		point := fault(t, node, f, agent.FaultKill)
		whileTalking(t, busy, func() {
			done := cli("containerd").begin(name, "pre-copy")
			point.reached(t)
			eventually(t, "the agent can be started",
				func() bool { return world.lab.StartAgent(t.Context(), node, "--faults") == nil })
			<-done
			gone := "b"
			if f.Step == "destroy" {
				gone = "a"
			}
			noCNI(t, gone)
			ctrNothing(t, gone, "default")
		})
	}
	_ = busy.conn.Close()
	removeByCtr(t, "b", name)
	for _, node := range nodes() {
		noCNI(t, node)
		forgotten(t, node)
	}
}

// TestContainerdNetworkRouted: on a network whose addresses the nodes route, containers continue to talk
// with each other on any node.
func TestContainerdNetworkRouted(t *testing.T) {
	for _, node := range nodes() {
		in(t, node, "godwit", "engine", "setup", "containerd", "--network", routed)
		t.Cleanup(func() {
			// for other tests
			_, _ = world.lab.Exec(context.Background(), node, "sh", "-c",
				"godwit engine remove containerd; godwit engine setup containerd")
		})
	}
	server := ctr(t, "default", []string{"--cni"}, echo)
	address, _ := cniAddress(t, "a", server)
	if address != "10.60.1.2" {
		t.Errorf("its address is %s", address)
	}
	const asker = "asker"
	t.Cleanup(func() {
		for _, node := range nodes() {
			_, _ = world.lab.Exec(context.Background(), node, "godwit", "rm", "--force", "containerd:"+asker)
		}
	})
	in(t, "a", "ctr", "run", "--detach", "--cni", "--log-uri", "file:///run/asker.log", ctrImage, asker,
		"/bin/sh", "-c", "{ "+count+"; } | nc "+address+" 80")
	where := map[string]string{server: "a", asker: "a"}
	moves := []string{server, asker, server, asker}
	if testing.Short() {
		moves = moves[:1]
	}
	for _, name := range moves {
		from := where[name]
		to := map[string]string{"a": "b", "b": "a"}[from]
		in(t, from, "godwit", "migrate", "--mode", "pre-copy", "containerd:"+name, to)
		where[name] = to
		ctrCounted(t, where[asker], asker, ctrCounted(t, where[asker], asker, 1)+5)
		if has, _ := cniAddress(t, where[server], server); has != address {
			t.Errorf("its address is %s, was %s", has, address)
		}
	}
	if err := tried(t, where[asker], "godwit", "engine", "remove", "containerd"); err == nil {
		t.Error("what containers need is removed")
	}
	for name, node := range where {
		in(t, node, "godwit", "rm", "--force", "containerd:"+name)
	}
	in(t, "a", "godwit", "engine", "remove", "containerd")
	if left := in(t, "a", "sh", "-c", "ls /etc/cni/net.d | grep godwit; ls -d /var/lib/cni/networks/"+routed+
		" 2>/dev/null; ip -o link show type bridge | grep cni-; true"); left != "" {
		t.Errorf("left are %s", left)
	}
}
