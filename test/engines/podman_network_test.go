package engines

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
)

// makePodmanNetworks makes the network on both nodes' Podmans, and the clients. Docker, which is also
// there, drops packets of networks that it does not know, and netavark only lets answers pass to its
// networks: like the administrator of such a node, the test allows published ports.
func makePodmanNetworks(t *testing.T) {
	t.Helper()
	makeClients(t)
	makePodmanBridges(t)
}

func makePodmanBridges(t *testing.T) {
	t.Helper()
	const subnet = "172.31.0.0/24"
	rule := []string{"DOCKER-USER", "--destination", subnet, "--match", "conntrack", "--ctstate", "DNAT",
		"--jump", "ACCEPT"}
	for _, node := range nodes() {
		in(t, node, "podman", "network", "create", "--subnet", subnet, "--gateway", "172.31.0.1", networkName)
		in(t, node, append([]string{"iptables", "--wait", "--insert"}, rule...)...)
	}
	t.Cleanup(func() {
		for _, node := range nodes() {
			_, _ = world.lab.Exec(context.Background(), node, "podman", "network", "rm", networkName)
			_, _ = world.lab.Exec(context.Background(), node,
				append([]string{"iptables", "--wait", "--delete"}, rule...)...)
		}
	})
}

// TestPodmanNetwork: a container on a network of Podman keeps its addresses, all its connections, whoever
// opened them and through either node, and its published ports, there and back.
func TestPodmanNetwork(t *testing.T) {
	makePodmanNetworks(t)
	modes := []string{"pre-copy", "cold"}
	if !testing.Short() {
		modes = append(modes, "post-copy", "hybrid")
	}
	inPodman.keepsConnections(t, modes, "--network", networkName)
}

// TestPodmanNetworkStays: a container that cannot move is refused with the reason, and however a move ends,
// the container's network is unchanged at the source, and nothing is left at the target.
func TestPodmanNetworkStays(t *testing.T) {
	makePodmanNetworks(t)
	name := inPodman.run(t, []string{"--network", networkName, "--publish", "8080:80"}, echo)
	busy := talk(t, clientMachine, net.JoinHostPort(addressOf(t, "a"), "8080"))
	for _, f := range []agent.Fault{{Side: "target", Step: "arrive", When: "after"},
		{Side: "target", Step: "restore", When: "before"}} {
		if testing.Short() { // TestPodmanNetwork includes a failing one
			break
		}
		fault(t, "b", f, agent.FaultFail)
		whileTalking(t, busy, func() {
			if err := <-inPodman.begin(name, "pre-copy"); err == nil {
				t.Error("it moved")
			}
		})
		for _, node := range nodes() {
			forgotten(t, node)
		}
		inPodman.nothing(t, "b", name)
	}
	address := inPodman.inspected(t, "a", name, ".NetworkSettings.Networks."+networkName+".IPAddress")
	taker := name + "-taker"
	t.Cleanup(func() { _, _ = world.lab.Exec(context.Background(), "b", inPodman.remove(taker)...) })
	in(t, "b", "podman", "run", "--detach", "--name", taker, "--network", networkName, "--ip", address,
		"--publish", "8080:80", image, "/bin/sh", "-c", count)
	refused := func(words ...string) {
		t.Helper()
		said := in(t, "a", "sh", "-c", "! godwit migrate --dry-run podman:"+name+" b 2>&1")
		for _, word := range words {
			if !strings.Contains(said, word) {
				t.Errorf("%s, want a refusal because of %s", said, word)
			}
		}
	}
	refused("address "+address, "published port 8080/tcp", taker)
	in(t, "b", inPodman.remove(taker)...)
	in(t, "b", "podman", "network", "rm", networkName)
	refused("network "+networkName, "podman network create --subnet 172.31.0.0/24 --gateway 172.31.0.1 "+
		networkName)
	busy.ask(t)
}

// TestPodmanNetworkKilled: agents that are killed during a move cost none of the container's connections,
// and the container is reachable when it is restarted at the target.
func TestPodmanNetworkKilled(t *testing.T) {
	makePodmanNetworks(t)
	name := inPodman.run(t, []string{"--network", networkName, "--publish", "8080:80"}, echo)
	busy := talk(t, clientMachine, net.JoinHostPort(addressOf(t, "a"), "8080"))
	for _, f := range []agent.Fault{
		{Side: "source", Step: "dump", When: "after"}, {Side: "target", Step: "receive", When: "after"},
		{Side: "source", Step: "destroy", When: "before"},
	} {
		if testing.Short() && f.Step != "destroy" {
			continue
		}
		node := map[string]string{"source": "a", "target": "b"}[f.Side]
		point := fault(t, node, f, agent.FaultKill)
		whileTalking(t, busy, func() {
			done := inPodman.begin(name, "pre-copy")
			point.reached(t)
			eventually(t, "the agent can be started",
				func() bool { return world.lab.StartAgent(t.Context(), node, "--faults") == nil })
			<-done
			gone := map[string]string{"destroy": "a"}[f.Step]
			if gone == "" {
				gone = "b"
			}
			inPodman.nothing(t, gone, name)
		})
	}
	eventually(t, "the migration is over on b, too", func() bool {
		return !strings.Contains(in(t, "b", "godwit", "migration", "ls"), "running")
	})
	in(t, "b", "podman", "restart", "--time", "0", name)
	for machine, node := range clientsOf() {
		talk(t, machine, net.JoinHostPort(addressOf(t, node), "8080"))
	}
}

// TestPodmanNetworkRouted: the same on a network of Podman, which removes a bridge with the last container
// on it. The setup is undone.
func TestPodmanNetworkRouted(t *testing.T) {
	setUpRouted(t, inPodman)
	inPodman.talksOnRouted(t, "10.59.1.7", "10.59.1.129")
	// for other tests
	t.Cleanup(func() {
		_, _ = world.lab.Exec(context.Background(), "b", "godwit", "engine", "setup",
			"podman")
	})
	in(t, "b", "godwit", "engine", "remove", "podman")
	if left := in(t, "b", "podman", "network", "ls", "--format", "{{.Name}}"); strings.Contains(left,
		routed) {
		t.Errorf("networks that are left: %s", left)
	}
}
