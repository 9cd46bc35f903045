package engines

import (
	"bufio"
	"context"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
)

// envNerdctl means that there is a nerdctl: no distribution has a package of it, and `make test-engines
// RUNS=nerdctl` builds one.
const envNerdctl = "GODWIT_ENGINES_NERDCTL"

// inNerdctl is nerdctl's command line.
const inNerdctl = cli("nerdctl")

// nerdctlFiles returns all files of nerdctl's containers on a node, except empty directories.
func nerdctlFiles(t *testing.T, node string) string {
	t.Helper()
	return in(t, node, "sh", "-c", "find /var/lib/nerdctl -type f; ls -d "+
		"/var/lib/nerdctl/*/containers/*/* /var/lib/nerdctl/*/etchosts/*/* 2>/dev/null; true")
}

// noNerdctl checks that a node has nothing of a nerdctl container or of its move.
func noNerdctl(t *testing.T, node string) {
	t.Helper()
	ctrNothing(t, node, "default")
	if left := nerdctlFiles(t, node); left != "" {
		t.Errorf("nerdctl on %s has %s", node, left)
	}
}

// nerdctl starts a container on node a like a user, and removes it from any node in the end.
func nerdctl(t *testing.T, flags []string, script string) (name string) {
	t.Helper()
	name = strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Name(), "TestNerdctl"), "/", "-"))
	t.Cleanup(func() {
		for _, node := range nodes() {
			// it is on one of them, or on none
			_, _ = world.lab.Exec(context.Background(), node, "nerdctl", "rm", "--force", "--volumes", name)
		}
	})
	in(t, "a", append(append([]string{"nerdctl", "run", "--detach", "--name", name}, flags...), image,
		"/bin/sh", "-c", script)...)
	inNerdctl.counted(t, "a", name, 1)
	return name
}

func moveNerdctl(t *testing.T, name, from, to, mode string) {
	t.Helper()
	in(t, from, "godwit", "migrate", "--mode", mode, "containerd:"+name, to)
}

// withoutNerdctl reports whether there is none, as in `make test`.
func withoutNerdctl() bool { return os.Getenv(envNerdctl) == "" }

// TestNerdctlMoves moves a container there and back in all modes. It belongs to nerdctl on each node, and
// nothing is left on the other.
func TestNerdctlMoves(t *testing.T) {
	if withoutNerdctl() {
		return
	}
	name := nerdctl(t, []string{"--net", "none", "--env", "COLOUR=blue", "--label", "team=red", "--memory",
		"64m", "--add-host", "far:10.1.2.3", "--stop-timeout", "1", "--restart", "always"},
		`echo file >/file; echo shared >/dev/shm/x; echo 10.9.8.7 mine >>/etc/hosts; `+count)
	const format = "{{.Id}} {{.State.StartedAt}} {{.Config.Hostname}} {{.LogPath}} " +
		"{{.Config.Labels.team}} {{.Config.Env}} {{.Image}} {{.Name}} {{.Platform}}"
	before := in(t, "a", "nerdctl", "inspect", "--format", format, name)
	from, to, at := "a", "b", 1
	for _, mode := range modes() {
		moveNerdctl(t, name, from, to, mode)
		noNerdctl(t, from)
		from, to = to, from
		at = inNerdctl.counted(t, from, name, at)
		if said := in(t, from, "nerdctl", "exec", name, "/bin/sh", "-c",
			"echo $COLOUR; cat /file /dev/shm/x; cat /etc/hosts"); !strings.HasPrefix(said,
			"blue\nfile\nshared\n") ||
			!strings.Contains(said, "10.9.8.7 mine") {
			t.Fatalf("after %s: %q", mode, said)
		}
		if listed := in(t, from, "nerdctl", "ps", "--format", "{{.Names}} {{.Status}}"); listed != name+
			" Up" {
			t.Errorf("nerdctl ps on %s: %q", from, listed)
		}
	}
	if after := in(t, from, "nerdctl", "inspect", "--format", format, name); after != before {
		t.Errorf("it is %s, was %s", after, before)
	}
	if said := in(t, from, "godwit", "logs", "--tail", "1", "containerd:"+name); !strings.HasPrefix(said,
		"tick ") {
		t.Errorf("godwit logs: %q", said)
	}
	id, _, _ := strings.Cut(before, " ")
	// it is restarted, and logs into the same log
	in(t, from, "ctr", "task", "kill", "--signal", "KILL", id)
	eventually(t, "it has been started again", func() bool {
		return strings.Count("\n"+in(t, from, "nerdctl", "logs", name)+"\n", "\ntick 1\n") == 2
	})
	in(t, from, "nerdctl", "stop", name)
	in(t, from, "nerdctl", "start", name) // like any other
	in(t, from, "nerdctl", "rm", "--force", name)
	noNerdctl(t, from)
}

// TestNerdctlHost: a container in the node's network moves, too.
func TestNerdctlHost(t *testing.T) {
	if withoutNerdctl() {
		return
	}
	name := nerdctl(t, []string{"--net", "host"}, count)
	moveNerdctl(t, name, "a", "b", "pre-copy")
	noNerdctl(t, "a")
	inNerdctl.counted(t, "b", name, inNerdctl.counted(t, "b", name, 1))
	in(t, "b", "godwit", "rm", "--force", "containerd:"+name)
	noNerdctl(t, "b")
}

// TestNerdctlRolledBack: a failed move leaves the container unchanged, whatever fails, and leaves nothing
// at the target.
func TestNerdctlRolledBack(t *testing.T) {
	if withoutNerdctl() {
		return
	}
	for step, f := range map[string]struct {
		when string
		kind agent.FaultKind
	}{"restore": {"before", agent.FaultFail}, "arrive": {"after", agent.FaultKill}} {
		t.Run(step, func(t *testing.T) {
			name := nerdctl(t, []string{"--net", "none"}, count)
			before := nerdctlFiles(t, "a")
			point := fault(t, "b", agent.Fault{Side: "target", Step: step, When: f.when}, f.kind)
			done := cli("containerd").begin(name, "pre-copy")
			if f.kind == agent.FaultKill {
				point.reached(t)
				eventually(t, "the agent can be started",
					func() bool { return world.lab.StartAgent(t.Context(), "b", "--faults") == nil })
			}
			if err := <-done; err == nil {
				t.Error("it moved")
			}
			inNerdctl.counted(t, "a", name, inNerdctl.counted(t, "a", name, 1))
			if after := nerdctlFiles(t, "a"); after != before {
				t.Errorf("nerdctl has %s, had %s", after, before)
			}
			eventually(t, "nothing is left of it on b", func() bool { return nerdctlFiles(t, "b") == "" })
			noNerdctl(t, "b")
		})
	}
}

// TestNerdctlRefused: a container that cannot move is refused with the reason, and keeps running.
func TestNerdctlRefused(t *testing.T) {
	if withoutNerdctl() {
		return
	}
	refused := func(t *testing.T, name string, words ...string) {
		t.Helper()
		said := in(t, "a", "sh", "-c", "! godwit migrate --dry-run containerd:"+name+" b 2>&1")
		for _, word := range words {
			if !strings.Contains(said, word) {
				t.Errorf("%s, want a refusal because of %s", said, word)
			}
		}
		inNerdctl.counted(t, "a", name, inNerdctl.counted(t, "a", name, 1))
	}
	t.Cleanup(func() { _, _ = world.lab.Exec(context.Background(), "a", "nerdctl", "volume", "rm", "box") })
	for what, flags := range map[string][]string{
		"volume box": {"--volume", "box:/data"}, "anonymous volumes": {"--volume", "/data"},
		"published ports": {"--publish", "8099:80"},
		"--pidfile":       {"--pidfile", "/run/pid"}, "--cidfile": {"--cidfile", "/run/cid"},
		"--ipc":                    {"--ipc", "shareable"},
		"host directory /tmp":      {"--volume", "/tmp:/data"},
		"capability CAP_SYS_ADMIN": {"--cap-add", "SYS_ADMIN"},
	} {
		t.Run(strings.NewReplacer(" ", "-", "/", "", "_", "-").Replace(strings.Trim(what, "-")),
			func(t *testing.T) {
				if what != "published ports" {
					flags = append([]string{"--net", "none"}, flags...)
				}
				refused(t, nerdctl(t, flags, count), what)
			})
	}
	t.Run("taken", func(t *testing.T) {
		name := nerdctl(t, []string{"--net", "none"}, count)
		in(t, "b", "nerdctl", "run", "--detach", "--net", "none", "--name", name, image, "/bin/sh", "-c",
			count)
		refused(t, name, "name "+name)
	})
}

// TestNerdctlNetwork: a container on nerdctl's default bridge, or on another bridge of nerdctl, keeps its
// address and its connections there and back, and nerdctl can stop, start and remove it.
func TestNerdctlNetwork(t *testing.T) {
	if withoutNerdctl() {
		return
	}
	makeClients(t)
	const own = "own"
	for _, node := range nodes() {
		in(t, node, "nerdctl", "network", "create", "--subnet", "10.5.0.0/24", own)
		in(t, node, "iptables", "--wait", "--insert", "DOCKER-USER", "--destination", "10.4.0.0/15", "--jump",
			"ACCEPT")
		t.Cleanup(func() {
			_, _ = world.lab.Exec(context.Background(), node, "iptables", "--wait", "--delete", "DOCKER-USER",
				"--destination", "10.4.0.0/15", "--jump", "ACCEPT")
			_, _ = world.lab.Exec(context.Background(), node, "nerdctl", "network", "rm", own)
		})
	}
	for _, network := range []string{"bridge", own} {
		t.Run(network, func(t *testing.T) { movesOnBridge(t, network) })
	}
}

func movesOnBridge(t *testing.T, network string) {
	inbound, err := world.lab.Listen(t.Context(), clientMachine, "tcp", ":9000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inbound.Close() })
	name := nerdctl(t, []string{"--net", network, "--env", "CALLS=" + addressOf(t, clientMachine)}, echo)
	// nerdctl makes it with the first container on a network
	const path = "/etc/cni/net.d/nerdctl-bridge.conflist"
	in(t, "b", "rm", "-f", path)
	if err := tried(t, "a", "godwit", "migrate", "containerd:"+name, "b"); err == nil ||
		!strings.Contains(err.Error(), "network bridge of") {
		t.Errorf("%v, want a refusal where there is no default network", err)
	}
	in(t, "b", "sh", "-c", "echo '"+in(t, "a", "cat", path)+"' >"+path)
	conn, err := inbound.Accept()
	if err != nil {
		t.Fatal(err)
	}
	called := &conversation{name: "called", conn: conn, answers: bufio.NewReader(conn)}
	address := inNerdctl.inspected(t, "a", name, ".NetworkSettings.IPAddress")
	at := net.JoinHostPort(address, "80")
	busy := talk(t, clientMachine, at)
	all := []*conversation{busy, called}
	from, to := "a", "b"
	for _, mode := range modes() {
		pause := whileTalking(t, busy, func() { moveNerdctl(t, name, from, to, mode) })
		t.Logf("%s from %s to %s: the client waited %s", mode, from, to, pause)
		noNerdctl(t, from)
		noNerdctlNetwork(t, from, network, address+"/32")
		from, to = to, from
		if has := inNerdctl.inspected(t, from, name, ".NetworkSettings.IPAddress"); has != address {
			t.Errorf("its address is %s, was %s", has, address)
		}
		all = append(all, talk(t, clientMachine, at))
		for _, one := range all {
			one.ask(t)
		}
		if hosts := in(t, from, "nerdctl", "exec", name, "/bin/cat", "/etc/hosts"); !strings.Contains(hosts,
			address) {
			t.Errorf("its hosts file is %q; on %s it is %q", hosts, from,
				in(t, from, "sh", "-c", "cat /var/lib/nerdctl/*/etchosts/*/*/hosts"))
		}
	}
	// which is told of it
	other := in(t, from, "nerdctl", "run", "--detach", "--net", network, image, "/bin/sh", "-c", count)
	if hosts := in(t, from, "nerdctl", "exec", other, "/bin/cat", "/etc/hosts"); !strings.Contains(hosts,
		address) || !strings.Contains(hosts, name) {
		t.Errorf("the hosts file of another one is %s", hosts)
	}
	in(t, from, "nerdctl", "rm", "--force", other)
	in(t, from, "nerdctl", "stop", "--time", "1", name)
	in(t, from, "nerdctl", "start", name)
	if has := inNerdctl.inspected(t, from, name, ".NetworkSettings.IPAddress"); has == "" {
		t.Error("it has no address when it is started again")
	}
	in(t, from, "nerdctl", "rm", "--force", name)
	for _, node := range nodes() {
		noNerdctl(t, node)
		// nerdctl itself leaves rules of restarted containers
		noNerdctlNetwork(t, node, network, "nothing")
	}
}

// noNerdctlNetwork checks that plugins have left nothing of a network's containers on a node, and no rule
// with this word.
func noNerdctlNetwork(t *testing.T, node, network, word string) {
	t.Helper()
	left := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("network on %s: %s", node, left)
		}
	})
	script := `ls /var/lib/cni/networks/` + network + ` /var/lib/cni/results /var/lib/godwit/engines/containerd-networks 2>/dev/null | grep -e ^10 -e eth0 -e json
		iptables-save | grep -F -e '` + word + `'; true`
	eventually(t, "nothing is left of the container's network on "+node, func() bool {
		left = in(t, node, "sh", "-c", script)
		return left == ""
	})
}
