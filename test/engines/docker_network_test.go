package engines

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/lab"
)

// subnet of the network of all nodes' Dockers, and echo, a program that echoes its input on port 80. It
// also connects to CALLS, and echoes there.
const (
	networkName = "birds"
	echo        = `nc -ll -p 80 -e /bin/cat & while [ -n "$CALLS" ]; do nc $CALLS 9000 -e /bin/cat; sleep 0.2; done 2>/dev/null & ` + count
)

// Machines beside the nodes: one is attached to node a, the other to node b.
const (
	clientMachine = "visitor"
	otherMachine  = "stranger"
)

// makeNetworks makes the network on both nodes, and the clients.
func makeNetworks(t *testing.T) {
	t.Helper()
	makeClients(t)
	makeBridges(t)
}

// makeBridges makes the network on both nodes.
func makeBridges(t *testing.T) {
	t.Helper()
	for _, node := range nodes() {
		in(t, node, "docker", "network", "create", "--subnet", "172.30.0.0/24", "--gateway", "172.30.0.1",
			networkName)
	}
	t.Cleanup(func() {
		for _, node := range nodes() {
			_, _ = world.lab.Exec(context.Background(), node, "docker", "network", "rm", networkName)
		}
	})
}

// makeClients makes a client at each node.
func makeClients(t *testing.T) {
	t.Helper()
	for machine, node := range clientsOf() {
		if err := world.lab.Client(machine, node, lab.Link{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for machine := range clientsOf() {
			_ = world.lab.RemoveClient(machine)
		}
	})
}

func clientsOf() map[string]string { return map[string]string{clientMachine: "a", otherMachine: "b"} }

// conversation is a TCP connection on which each line is echoed.
type conversation struct {
	name    string
	conn    net.Conn
	answers *bufio.Reader
	said    int
}

// talk opens a conversation from a machine.
func talk(t *testing.T, machine, address string) *conversation {
	t.Helper()
	c := &conversation{name: machine + " to " + address}
	eventually(t, c.name, func() bool {
		conn, err := world.lab.Dial(t.Context(), machine, "tcp", address)
		if err != nil {
			return false
		}
		c.conn, c.answers = conn, bufio.NewReader(conn)
		return true
	})
	t.Cleanup(func() { _ = c.conn.Close() })
	c.ask(t)
	return c
}

// ask sends a line, and expects its echo.
func (c *conversation) ask(t *testing.T) {
	t.Helper()
	if err := c.try(); err != nil {
		t.Fatal(err)
	}
}

func (c *conversation) try() error {
	c.said++
	line := fmt.Sprintf("%s %d %s\n", c.name, c.said, strings.Repeat("x", 4000))
	_ = c.conn.SetDeadline(time.Now().Add(20 * time.Second)) // the connection is not used later
	_, err := c.conn.Write([]byte(line))
	got := ""
	if err == nil {
		got, err = c.answers.ReadString('\n')
	}
	if err != nil || got != line {
		return fmt.Errorf("%s: line %d is answered by %.40q: %w", c.name, c.said, got, err)
	}
	return nil
}

// whileTalking calls do while a conversation goes on all the time, and returns its longest pause.
func whileTalking(t *testing.T, c interface{ try() error }, do func()) time.Duration {
	t.Helper()
	var longest time.Duration
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for last := time.Now(); ; last = time.Now() {
			err := c.try()
			longest = max(longest, time.Since(last))
			select {
			case <-stop:
				done <- err
				return
			default:
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	do()
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return longest
}

func addressOf(t *testing.T, machine string) string {
	t.Helper()
	ip, err := world.lab.Address(machine)
	if err != nil {
		t.Fatal(err)
	}
	return ip.String()
}

// forgotten checks that nothing is left of containers on bridges in a node's network.
func forgotten(t *testing.T, node string) {
	t.Helper()
	eventually(t, "the network of "+node+" is as it was", func() bool {
		left := in(t, node, "sh", "-c", "nft list tables; ip route show proto 103; cat "+
			"/var/lib/godwit/bridged.json 2>/dev/null; ls /run/godwit/netns; true")
		return !strings.Contains(left, "godwit-flows") && !strings.Contains(left, "172.") &&
			!strings.Contains(left, "container")
	})
}

// TestDockerNetwork: a container on a network of Docker keeps its address, all its connections, whoever
// opened them and through either node, and its published ports, there and back.
func TestDockerNetwork(t *testing.T) {
	makeNetworks(t)
	inDocker.keepsConnections(t, []string{"pre-copy", "cold", "post-copy"}, "--network", networkName)
}

// keepsConnections moves a container on an engine's network between a and b, in these modes.
func (c cli) keepsConnections(t *testing.T, modes []string, flags ...string) {
	t.Helper()
	inbound, err := world.lab.Listen(t.Context(), clientMachine, "tcp", ":9000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inbound.Close() })
	flags = append(flags, "--publish", "8080:80", "--network-alias", "wader", "--env",
		"CALLS="+addressOf(t, clientMachine))
	name := c.run(t, flags, echo)
	conn, err := inbound.Accept()
	if err != nil {
		t.Fatal(err)
	}
	called := &conversation{name: "called", conn: conn, answers: bufio.NewReader(conn)}
	called.ask(t)
	addresses := ".NetworkSettings.Networks." + networkName + ".IPAddress"
	if c == inPodman { // Docker 28 chooses a different hardware address
		addresses += "}} {{.NetworkSettings.Networks." + networkName + ".MacAddress"
	}
	had := c.inspected(t, "a", name, addresses)
	portA, portB := net.JoinHostPort(addressOf(t, "a"), "8080"), net.JoinHostPort(addressOf(t, "b"), "8080")
	busy, idle := talk(t, clientMachine, portA), talk(t, clientMachine, portA)
	all := []*conversation{busy, idle, called}
	from, to := "a", "b"
	for i, mode := range modes {
		pause := whileTalking(t, busy, func() { c.migrate(t, name, from, to, mode) })
		t.Logf("%s from %s to %s: the client waited %s", mode, from, to, pause)
		c.nothing(t, from, name)
		from, to = to, from
		c.counted(t, from, name, 1)
		if has := c.inspected(t, from, name, addresses); has != had {
			t.Errorf("it has %s, had %s", has, had)
		}
		all = append(all, talk(t, clientMachine, portA), talk(t, otherMachine, portB))
		if i == 0 {
			c.failsToReturn(t, name)
			all = append(all, talk(t, clientMachine, portA))
		}
		for _, one := range all {
			one.ask(t)
		}
	}
	in(t, from, c.remove(name)...)
	for _, node := range nodes() {
		forgotten(t, node)
	}
}

// failsToReturn makes a move from b back to a fail when the container's copy is ready there: traffic
// through a continues to b.
func (c cli) failsToReturn(t *testing.T, name string) {
	t.Helper()
	fault(t, "a", agent.Fault{Side: "target", Step: "restore", When: "before"}, agent.FaultFail)
	if err := tried(t, "b", "godwit", "migrate", "--mode", "cold", string(c)+":"+name, "a"); err == nil {
		t.Error("it moved")
	}
	eventually(t, "its copy is removed", func() bool {
		return in(t, "a", string(c), "ps", "--all", "--quiet", "--filter", "name=^"+name+"$") == ""
	})
}

// TestDockerNetworkStays: however a move ends, the container's network is unchanged at the source, and
// nothing is left at the target.
func TestDockerNetworkStays(t *testing.T) {
	makeNetworks(t)
	name := docker(t, []string{"--network", networkName, "--publish", "8080:80"}, echo)
	busy := talk(t, clientMachine, net.JoinHostPort(addressOf(t, "a"), "8080"))
	for _, f := range []agent.Fault{{Side: "target", Step: "arrive", When: "after"},
		{Side: "target", Step: "restore", When: "before"}} {
		fault(t, "b", f, agent.FaultFail)
		whileTalking(t, busy, func() {
			if err := <-begin(name, "pre-copy"); err == nil {
				t.Error("it moved")
			}
		})
		for _, node := range nodes() {
			forgotten(t, node)
		}
		nothing(t, "b", name)
		eventually(t, "no shim is left",
			func() bool { return tried(t, "b", "pgrep", "-f", "[c]ontainerd-shim-runc-v2") != nil })
	}
	// Docker notices it when it makes the container's network
	other, err := world.lab.Listen(t.Context(), "b", "tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	whileTalking(t, busy, func() {
		if err := <-begin(name, "pre-copy"); err == nil ||
			!strings.Contains(err.Error(), "address already in use") {
			t.Errorf("%v, want that the port is another's", err)
		}
	})
	_ = other.Close()
	nothing(t, "b", name)
	own := talk(t, "a", "127.0.0.1:8080") // through docker-proxy, from the bridge
	if err := tried(t, "a", "godwit", "migrate", "docker:"+name, "b"); err == nil ||
		!strings.Contains(err.Error(), "connection with 172.30.0.1:") {
		t.Errorf("%v, want a refusal because of a connection with the node itself", err)
	}
	_ = own.conn.Close()
	taker := name + "-taker"
	address := inspected(t, "a", name, ".NetworkSettings.Networks."+networkName+".IPAddress")
	t.Cleanup(func() { _, _ = world.lab.Exec(context.Background(), "b", "docker", "rm", "--force", taker) })
	in(t, "b", "docker", "run", "--detach", "--name", taker, "--network", networkName, "--ip", address,
		"--publish", "8080:80", image, "/bin/sh", "-c", count)
	err = tried(t, "a", "godwit", "migrate", "docker:"+name, "b")
	if err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), taker) {
		t.Errorf("%v, want a refusal because of %s", err, taker)
	}
	busy.ask(t)
}

// TestDockerNetworkRestarts: a container that has moved is reachable as before when Docker or a user
// restarts it at the target.
func TestDockerNetworkRestarts(t *testing.T) {
	makeNetworks(t)
	name := docker(t, []string{"--network", networkName, "--publish", "8080:80", "--restart", "always"}, echo)
	migrate(t, name, "a", "b", "cold")
	address := inspected(t, "b", name, ".NetworkSettings.Networks."+networkName+".IPAddress")
	for _, again := range [][]string{
		{"kill", "-KILL", inspected(t, "b", name, ".State.Pid")}, {"docker", "restart", "--time", "0", name},
		{"docker", "stop", "--time", "0", name},
	} {
		started := inspected(t, "b", name, ".State.StartedAt")
		in(t, "b", again...)
		if slices.Contains(again, "stop") {
			in(t, "b", "docker", "start", name)
		}
		eventually(t, "it is started again", func() bool {
			return inspected(t, "b", name, ".State.Running") == "true" &&
				inspected(t, "b", name, ".State.StartedAt") != started
		})
		talk(t, clientMachine, net.JoinHostPort(addressOf(t, "a"), "8080"))
		talk(t, otherMachine, net.JoinHostPort(addressOf(t, "b"), "8080"))
		talk(t, "a", net.JoinHostPort(address, "80"))
	}
	in(t, "b", "docker", "rm", "--force", name)
	for _, node := range nodes() {
		forgotten(t, node)
	}
}

// TestDockerNetworkRouted: on a network whose addresses the nodes route, containers continue to talk with
// each other on any node.
func TestDockerNetworkRouted(t *testing.T) {
	setUpRouted(t, inDocker, "--config", "/tmp/daemon.json", "--pidfile", "/tmp/none")
	inDocker.talksOnRouted(t, "10.58.1.7", "10.58.1.128")
}

// routed is the name of a network whose addresses the nodes route to each other.
const routed = "waders"

func setUpRouted(t *testing.T, c cli, flags ...string) {
	t.Helper()
	for _, node := range nodes() {
		in(t, node, append([]string{"godwit", "engine", "setup", string(c), "--network", routed},
			flags...)...)
		t.Cleanup(func() {
			_, _ = world.lab.Exec(context.Background(), node, string(c), "network", "rm",
				routed)
		})
	}
}

// talksOnRouted moves a container with an address that its engine does not assign by itself, and another
// one that talks with it and has the first address that the engine chooses. A third one comes to the node
// that both have left, connects to it before anything else, and continues after its return.
func (c cli) talksOnRouted(t *testing.T, address, chosen string) {
	t.Helper()
	server := c.run(t, []string{"--network", routed, "--ip", address}, echo)
	where := map[string]string{server: "a"}
	asks := func(name string, flags ...string) {
		t.Cleanup(func() {
			for _, node := range nodes() {
				_, _ = world.lab.Exec(context.Background(), node, c.remove(name)...)
			}
		})
		args := append([]string{string(c), "run", "--detach", "--name", name, "--network", routed}, flags...)
		in(t, "a", append(args, image, "/bin/sh", "-c", "{ "+count+"; } | nc "+address+" 80")...)
		where[name] = "a"
	}
	asker, neighbour := server+"-asker", server+"-neighbour"
	asks(asker)
	if own := c.inspected(t, "a", asker, ".NetworkSettings.Networks."+routed+".IPAddress"); own != chosen {
		t.Errorf("the address that the engine has chosen is %s", own)
	}
	for _, name := range []string{server, asker, server} {
		if name == server && where[server] == "b" {
			asks(neighbour, "--ip", address+"0")
			c.counted(t, "a", neighbour, 1)
		}
		from := where[name]
		to := map[string]string{"a": "b", "b": "a"}[from]
		c.migrate(t, name, from, to, "pre-copy")
		where[name] = to
		for one, node := range where {
			if one != server {
				c.counted(t, node, one, c.counted(t, node, one, 1)+5)
			}
		}
		if now := c.inspected(t, where[server], server,
			".NetworkSettings.Networks."+routed+".IPAddress"); now != address {
			t.Errorf("its address is %s, was %s", now, address)
		}
	}
	for name, node := range where {
		in(t, node, c.remove(name)...)
	}
}

// TestDockerBridge: on the default bridge a container keeps its address if Docker would assign it anyway,
// and is refused otherwise. Traffic forwarded to a container that has left ends when its address is
// assigned again.
func TestDockerBridge(t *testing.T) {
	makeClients(t)
	name := docker(t, []string{"--network", "bridge", "--publish", "8080:80"}, echo)
	busy := talk(t, clientMachine, net.JoinHostPort(addressOf(t, "a"), "8080"))
	whileTalking(t, busy, func() { migrate(t, name, "a", "b", "pre-copy") })
	counted(t, "b", name, 1)
	talk(t, otherMachine, net.JoinHostPort(addressOf(t, "b"), "8080"))
	taker := name + "-taker"
	t.Cleanup(func() { _, _ = world.lab.Exec(context.Background(), "a", "docker", "rm", "--force", taker) })
	in(t, "a", "docker", "run", "--detach", "--name", taker, image, "/bin/sh", "-c", echo)
	address := inspected(t, "a", taker, ".NetworkSettings.IPAddress")
	if address != inspected(t, "b", name, ".NetworkSettings.IPAddress") {
		t.Errorf("the other one has %s", address)
	}
	eventually(t, "the address is the other one's",
		func() bool { return in(t, "a", "ip", "route", "show", address) == "" })
	talk(t, "a", net.JoinHostPort(address, "80"))
	err := tried(t, "b", "godwit", "migrate", "docker:"+name, "a")
	if err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), taker) {
		t.Errorf("%v, want a refusal because of %s", err, taker)
	}
	in(t, "b", "docker", "rm", "--force", name)
	in(t, "a", "docker", "rm", "--force", taker)
	for _, node := range nodes() {
		forgotten(t, node)
	}
}

// TestDockerNetworkKilled: agents that are killed during a move cost none of the container's connections.
func TestDockerNetworkKilled(t *testing.T) {
	makeNetworks(t)
	name := docker(t, []string{"--network", networkName, "--publish", "8080:80"}, echo)
	busy := talk(t, clientMachine, net.JoinHostPort(addressOf(t, "a"), "8080"))
	for _, f := range []struct {
		fault agent.Fault
		moves bool
	}{
		{agent.Fault{Side: "source", Step: "dump", When: "after"}, false},
		{agent.Fault{Side: "target", Step: "receive", When: "after"}, false},
		{agent.Fault{Side: "source", Step: "destroy", When: "before"}, true},
	} {
		if testing.Short() && !f.moves {
			continue
		}
		node := map[string]string{"source": "a", "target": "b"}[f.fault.Side]
		point := fault(t, node, f.fault, agent.FaultKill)
		whileTalking(t, busy, func() {
			done := begin(name, "pre-copy")
			point.reached(t)
			eventually(t, "the agent can be started",
				func() bool { return world.lab.StartAgent(t.Context(), node, "--faults") == nil })
			<-done
			at := map[bool]string{false: "a", true: "b"}[f.moves]
			eventually(t, "it is at one node only", func() bool {
				for _, other := range nodes() {
					there := in(t, other, "docker", "ps", "--all", "--quiet", "--filter",
						"name=^"+name+"$") != ""
					if there != (other == at) {
						return false
					}
				}
				return true
			})
			counted(t, at, name, counted(t, at, name, 1))
		})
	}
}

// TestDockerNetworkDaemon: a Docker that is killed while it starts an arriving container has nothing of it
// when it is back, and the container can then come.
func TestDockerNetworkDaemon(t *testing.T) {
	if testing.Short() { // like other operations on containers
		return
	}
	makeNetworks(t)
	if err := errors.Join(world.lab.Engines().StopDocker(t.Context(), "b"),
		world.lab.Engines().StartDocker(t.Context(), "b")); err != nil {
		t.Fatal(err) // from now on it uses the node's containerd, which stays when Docker is killed
	}
	name := docker(t, []string{"--network", networkName, "--publish", "8080:80"}, echo)
	busy := talk(t, clientMachine, net.JoinHostPort(addressOf(t, "a"), "8080"))
	point := fault(t, "b", agent.Fault{Side: "target", Step: "arrive", When: "after"}, agent.FaultPause)
	whileTalking(t, busy, func() {
		done := begin(name, "pre-copy")
		point.reached(t)
		in(t, "b", "sh", "-c", "kill -KILL $(cat /run/docker.pid)")
		restartDaemon(t, byDocker{byCommand{inDocker}}, "b")
		point.goOn(t)
		if err := <-done; err == nil {
			t.Error("it moved")
		}
		nothing(t, "b", name)
		migrate(t, name, "a", "b", "pre-copy")
	})
	counted(t, "b", name, 1)
}
