package e2e

import (
	"bufio"
	"strings"
	"testing"
)

// odd starts a container with something in it, at descriptor 77, that stands against a move.
func odd(t *testing.T, flags []string, args ...string) *container {
	t.Helper()
	return state(t, flags, append([]string{"odd"}, args...)...)
}

// TestRefused has containers with one thing each that CRIU cannot dump. The refusal must name process and descriptor.
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
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := odd(t, nil, kind)
			c.refused(words...)
			c.exec("/bin/state", "ask", "check")
		})
	}
}

// TestRefusedRing has an io_uring, which the container got from outside: the default seccomp profile does not let it
// make one.
func TestRefusedRing(t *testing.T) {
	t.Parallel()
	c := odd(t, []string{"-v", "ring:/data"}, "outside", "/data/socket")
	given := make(chan error, 1)
	go func() {
		_, err := world.lab.Exec(t.Context(), "a", inWorld("state"), "give", "io_uring", "/var/lib/godwit/volumes/ring/socket")
		given <- err
	}()
	c.ok("receive")
	if err := <-given; err != nil {
		t.Fatal(err)
	}
	c.refused("process 1 (state)", "descriptor 77", "io_uring")
	c.ok("check")
}

// TestRefusedOutsider has a unix socket that is connected to a process outside of the container. When the connection is
// closed the container can be moved.
func TestRefusedOutsider(t *testing.T) {
	t.Parallel()
	c := odd(t, []string{"-v", "outsider:/data"}, "outside", "/data/socket")
	cmd, err := world.lab.Command(t.Context(), "a", inWorld("state"), "hold", "/var/lib/godwit/volumes/outsider/socket")
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
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "connected\n" {
		t.Fatalf("connect: %q, %v", line, err)
	}
	// Not accepted yet, then accepted.
	c.refused("process 1 (state)", "unix socket", "outside of the container")
	c.ok("accept")
	c.refused("process 1 (state)", "descriptor 77", "unix socket", "outside of the container")
	if err := stdin.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	c.ok("check")
	c.migrate()
	c.ok("check")
}

// TestRefusedMultipath has a server in Go, which listens with MPTCP unless it is told not to.
func TestRefusedMultipath(t *testing.T) {
	t.Parallel()
	c := run(t, nil, "/bin/listen")
	c.refused("process 1 (listen)", "descriptor", "MPTCP", "GODEBUG=multipathtcp=0")
}

// TestMultipathOff is the same server with what the refusal tells to do.
func TestMultipathOff(t *testing.T) {
	t.Parallel()
	c := run(t, []string{"-e", "GODEBUG=multipathtcp=0"}, "/bin/listen")
	address := c.address()
	for range 2 {
		c.migrate()
		conn, err := world.lab.Dial(t.Context(), "client", "tcp", address+":7000")
		if err != nil {
			t.Fatalf("on %s: %v", c.node, err)
		}
		_ = conn.Close()
	}
}

// TestRefusedExec has a process that was started by exec; its parent is outside. When it has ended the container can be
// moved.
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
	// The session was not touched either.
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

// TestPacketSocket: CRIU can carry one, so it is not refused.
func TestPacketSocket(t *testing.T) {
	t.Parallel()
	c := odd(t, nil, "packet")
	c.survives()
}

// TestRefusedRequests gives bad requests: clear words, nothing changed.
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
