package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// odd starts a container with an obstacle to a move at descriptor 77.
func odd(t *testing.T, flags []string, args ...string) *container {
	t.Helper()
	return state(t, flags, append([]string{"odd"}, args...)...)
}

// TestRefused has containers with one thing each that CRIU cannot dump. The refusal must name process
// and descriptor.
func TestRefused(t *testing.T) {
	for kind, words := range map[string][]string{
		"packet-pipe":   {"process 1 (state)", "descriptor 77", "packet mode"},
		"message-queue": {"process 1 (state)", "descriptor 77", "message queue"},
		"kept-queue":    {"message queue", "/queue"},
		"traced":        {"(state)", "traced"},
		"netlink":       {"process 1 (state)", "descriptor 77", "group 33"},
		"semaphore":     {"process 1 (state)", "descriptor 77", "eventfd"},
		"large-counter": {"process 1 (state)", "descriptor 77", "eventfd"},
		"lease":         {"process 1 (state)", "descriptor 77", "lease"},
		"waiting":       {"process 1 (state)", "unix socket"},
		"closed":        {"process 1 (state)", "descriptor 77", "closed before it was accepted"},
		"in-flight":     {"process 1 (state)", "message that is not received"},
		"watch-removed": {"process 1 (state)", "descriptor 77", "removed file: /tmp/removed"},
		"trap":          {"process 1 (state)", "SIGTRAP"},
		"cork":          {"process 1 (state)", "descriptor 77", "UDP_CORK"},
		"credentials":   {"process 1 (state)", "descriptor 77", "unix socket"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := odd(t, nil, kind)
			c.refused(append(words, "--mode restart")...)
			c.exec("/bin/state", "ask", "check")
		})
	}
}

// TestRefusedRing has an io_uring. The default seccomp profile does not let a container make one, so the
// filter is suspended for a moment, as a debugger can. In mode restart it can move, and its processes
// start anew.
func TestRefusedRing(t *testing.T) {
	t.Parallel()
	c := odd(t, []string{"--stop-signal", "KILL"}, "nothing")
	helper := helperAt(t, "a", "unconfined", "unconfine", strconv.Itoa(c.inspect().PID))
	c.ok("ring")
	helper.end()
	c.refused("process 1 (state)", "descriptor 77", "io_uring", "--mode restart")
	c.ok("check")
	c.migrateBy(restart)
	c.migrateBy(cold) // the obstacle is gone
	if ready := strings.Count(c.logs().stdout, "ready"); ready != 2 {
		t.Errorf("it was started %d times", ready)
	}
}

// TestRefusedOutsider has a unix socket that is connected to a process outside of the container. When
// the connection is closed the container can be moved.
func TestRefusedOutsider(t *testing.T) {
	t.Parallel()
	c := odd(t, []string{"-v", "outsider:/data"}, "outside", "/data/socket")
	helper := helperAt(t, "a", "connected", "hold", "/var/lib/godwit/volumes/outsider/socket")
	// Not accepted yet, then accepted.
	c.refused("process 1 (state)", "unix socket", "outside of the container")
	c.ok("accept")
	c.refused("process 1 (state)", "descriptor 77", "unix socket", "outside of the container")
	// The socket stays an outsider's, of another network namespace, until it is closed.
	helper.end()
	c.refused("process 1 (state)", "descriptor 77", "unix socket", "outside of the container")
	c.ok("close")
	c.migrate()
}

// TestRefusedNetwork makes things in a container's network namespace that the target would lack, one after
// the other. Each is refused by name, and when all are gone the container can be moved.
func TestRefusedNetwork(t *testing.T) {
	t.Parallel()
	c := run(t, nil, "/bin/sh", "-c", "echo ready; while :; do sleep 0.05; done")
	within := func(line string) {
		t.Helper()
		enter := fmt.Sprintf("nsenter --net=/proc/%d/ns/net %s", c.inspect().PID, line)
		if out, err := world.lab.Exec(t.Context(), c.node, "sh", "-c", enter); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	for _, one := range []struct{ make, remove, words string }{
		{
			"nft add table inet killswitch",
			"nft delete table inet killswitch",
			"nftables table inet killswitch",
		},
		{"iptables-legacy -P OUTPUT DROP", "iptables-legacy -P OUTPUT ACCEPT", "iptables table filter"},
		{"ip link add br0 type bridge", "ip link del br0", "device br0 (bridge)"},
		{
			"ip address add 10.77.0.1/32 dev lo",
			"ip address del 10.77.0.1/32 dev lo",
			"address 10.77.0.1/32 of device lo",
		},
		{
			"ip route add 10.78.0.0/16 dev eth0",
			"ip route del 10.78.0.0/16",
			"route to 10.78.0.0/16 through eth0",
		},
		{"ip rule add fwmark 1 table 100", "ip rule del fwmark 1", "routing rule 32765 for mark 0x1"},
		{
			"ip route del default",
			"ip route add default via 169.254.1.1 dev eth0 onlink",
			"which was removed",
		},
		{
			"sysctl -q -w 'net.ipv4.ping_group_range=0 10'",
			"sysctl -q -w 'net.ipv4.ping_group_range=1 0'",
			"net.ipv4.ping_group_range = 0 10",
		},
	} {
		within(one.make)
		c.refused(one.words, "--mode restart")
		within(one.remove)
	}
	// As it is where the node's were otherwise when the container was made.
	within("sysctl -q -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.all.log_martians=1")
	c.migrate()
	c.migrate()
}

// helper is a workload program that runs in a node, outside of all containers, until its standard input ends.
type helper struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
}

// helperAt starts one and waits for its first line.
func helperAt(t *testing.T, node, line string, args ...string) *helper {
	t.Helper()
	cmd, err := world.lab.Command(t.Context(), node, append([]string{inWorld("state")}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || got != line+"\n" {
		t.Fatalf("%v: %q, %v", args, got, err)
	}
	return &helper{t, cmd, stdin}
}

func (h *helper) end() {
	h.t.Helper()
	if err := errors.Join(h.stdin.Close(), h.cmd.Wait()); err != nil {
		h.t.Error(err)
	}
}

// TestMultipathListener moves a server in Go, which listens with MPTCP where it can: here, as an
// administrator has switched MPTCP on in the container's network.
func TestMultipathListener(t *testing.T) {
	t.Parallel()
	const wait = "echo ready; while [ ! -e /tmp/begin ]; do sleep 0.05; done; exec /bin/listen"
	c := run(t, nil, "/bin/sh", "-c", wait)
	within := func(line string) string {
		t.Helper()
		enter := fmt.Sprintf("nsenter --net=/proc/%d/ns/net %s", c.inspect().PID, line)
		out, err := world.lab.Exec(t.Context(), c.node, "sh", "-c", enter)
		if err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	const enabled = "cat /proc/sys/net/mptcp/enabled"
	if is := within(enabled); is != "0" {
		t.Errorf("net.mptcp.enabled is %s in a new container", is)
	}
	within("sysctl -q -w net.mptcp.enabled=1")
	c.exec("/bin/sh", "-c", "mkdir -p /tmp; : > /tmp/begin")
	c.eventually("the server listens", func() bool { return strings.Count(c.logs().stdout, "ready") == 2 })
	if listeners := within("ss -HlnM"); !strings.Contains(listeners, ":7000") {
		t.Fatalf("MPTCP listeners: %q", listeners)
	}
	address := c.address()
	for range 2 {
		c.migrate()
		conn, err := world.lab.Dial(t.Context(), "client", "tcp", address+":7000")
		if err != nil {
			t.Fatalf("on %s: %v", c.node, err)
		}
		_ = conn.Close()
		if is := within(enabled); is != "0" {
			t.Errorf("net.mptcp.enabled is %s on %s", is, c.node)
		}
	}
}

// TestRefusedExec has a process that was started by exec; its parent is outside. When the process has
// ended, the container can be moved.
func TestRefusedExec(t *testing.T) {
	t.Parallel()
	c := run(t, nil, "/bin/sh", "-c", "echo ready; while :; do sleep 0.05; done")
	cmd, err := world.lab.Command(t.Context(), "a", "godwit", "exec", "-i", c.name, "/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("exec: %q, %v", line, err)
	}
	c.refused("(cat)", "exec")
	// The session was not affected either.
	if _, err := stdin.Write([]byte("still there\n")); err != nil {
		t.Error(err)
	}
	if line, err := lines.ReadString('\n'); err != nil || line != "still there\n" {
		t.Errorf("exec after the refusal: %q, %v", line, err)
	}
	_ = stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	c.migrate()
}

// TestRefusedFull has a process that has permanently used up its limit of descriptors. The refusal names
// the process, and the recommended remedy works.
func TestRefusedFull(t *testing.T) {
	t.Parallel()
	c := run(t, nil, "/bin/sh", "-c", "ulimit -S -n 3; echo ready; while :; do sleep 3600; done")
	c.refused("process 1 (sh): no free descriptor below its limit (RLIMIT_NOFILE 3)",
		"CRIU must open one in every process", "prlimit --pid", "--mode restart")
	out, err := godwit(t.Context(), c.node, "migrate", c.name, c.other(), "--dry-run")
	if err != nil {
		t.Fatal(err)
	}
	recommended := regexp.MustCompile(`prlimit --pid \d+ --nofile=\d+:\d+`)
	for _, command := range recommended.FindAllString(out.stdout, -1) {
		if said, err := world.lab.Exec(t.Context(), c.node, "sh", "-c", command); err != nil {
			t.Fatalf("%s: %v: %s", command, err, said)
		}
	}
	c.migrate()
}

// TestFullForAMoment: processes use up their limit of descriptors all the time, but each only for a moment,
// like an sshd to which clients connect all the time. Nothing is refused. The move finds no moment for the
// freeze, and reports which process was the obstacle, and the remedy.
func TestFullForAMoment(t *testing.T) {
	t.Parallel()
	const script = "echo ready; while :; do (ulimit -n 3; exec sleep 0.5) & sleep 0.2; done"
	c := run(t, nil, "/bin/sh", "-c", script)
	out, err := godwit(t.Context(), c.node, "migrate", c.name, c.other(), "--dry-run")
	if err != nil || out.code != 0 {
		t.Errorf("%v, exit code %d: %s%s", err, out.code, out.stdout, out.stderr)
	}
	out, err = godwit(t.Context(), c.node, "migrate", c.name, c.other())
	if err != nil || out.code != 1 {
		t.Fatalf("%v, exit code %d: %s%s", err, out.code, out.stdout, out.stderr)
	}
	for _, words := range []string{
		"(sleep) has no free descriptor below its limit (RLIMIT_NOFILE 3)", "no moment within 5s",
		"try again when the process has ended", "prlimit --pid ",
	} {
		if !strings.Contains(out.stderr, words) {
			t.Errorf("it does not say %q: %s", words, out.stderr)
		}
	}
	c.gone(c.other())
	if state := c.inspect().State; state != "running" {
		t.Errorf("it is %s", state)
	}
}

// TestPacketSocket: CRIU can save one, so it is not refused.
func TestPacketSocket(t *testing.T) {
	t.Parallel()
	c := odd(t, nil, "packet")
	c.survives()
}

// TestRefusedRequests makes bad requests: the errors are clear, and nothing changes.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	c := run(t, nil, "/bin/sh", "-c", "echo ready; while :; do sleep 0.05; done")
	for _, one := range []struct {
		args  []string
		words string
	}{
		{[]string{"no-such-container", "b"}, "no-such-container"},
		{[]string{c.name, "z"}, "z"},
		{[]string{c.name, "a"}, "a"},
		{[]string{c.name, "b", "--mode", "teleport"}, "teleport"},
	} {
		out, err := godwit(t.Context(), "a", append([]string{"migrate"}, one.args...)...)
		if err != nil || out.code == 0 || !strings.Contains(out.stderr, one.words) {
			t.Errorf("migrate %v: %v, exit code %d: %s%s", one.args, err, out.code, out.stdout, out.stderr)
		}
	}
	c.migrate()
}

// TestWrongValues: the exit code is 2 for values that are always wrong, and 1 for those that are wrong in
// the current state.
func TestWrongValues(t *testing.T) {
	t.Parallel()
	c := run(t, nil, "/bin/sh", "-c", "echo ready; while :; do sleep 0.05; done")
	r := c.migrateBy(cold)
	for line, code := range map[string]int{
		"migrate NAME a --mode precopy":                    2,
		"migrate NAME a --max-rounds -1":                   2,
		"migrate NAME a --on-no-convergence abort":         2,
		"migrate NAME a --timeout -3s":                     2,
		"migrate NAME a --bandwidth-limit 0":               2,
		"stage NAME a --keep -1h":                          2,
		"migrate NAME b":                                   1, // its own node
		"migrate NAME nowhere":                             1,
		"migrate nobody a":                                 1,
		"migration cancel " + r.Migration:                  1,
		"migration set " + r.Migration + " --max-rounds 3": 1,
		"migration show 0123456789abcdef":                  1,
		"migration show " + r.Migration[:12]:               0,
		"migration watch " + r.Migration[:12]:              0,
	} {
		args := strings.Fields(strings.ReplaceAll(line, "NAME", c.name))
		out, err := godwit(t.Context(), c.node, args...)
		if err != nil || out.code != code || strings.Contains(out.stderr, "invalid request") {
			t.Errorf("godwit %s: %v, exit code %d, want %d: %s", strings.Join(args, " "), err, out.code,
				code, out.stderr)
		}
	}
	for line, want := range map[string]string{
		"migrate ": c.name + "\trunning", "migrate NAME ": "a", "migration show ": r.Migration + "\t",
	} {
		args := append(strings.Fields("__complete "+strings.ReplaceAll(line, "NAME", c.name)), "")
		c.eventually(line+"offers "+want, func() bool { // completion does not wait long for a busy agent
			return strings.Contains("\n"+must(t, c.node, args...), "\n"+want)
		})
	}
}
