package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab/workload"
)

// TestRestartRedis counts with a Redis that answers after writing to disk, while it is restarted at one
// node after the other. No client is refused or left waiting silently: connected clients are disconnected
// at once, connecting clients wait.
func TestRestartRedis(t *testing.T) {
	const serve = `exec redis-server --bind 0.0.0.0 --protected-mode no --dir /data --appendonly yes --appendfsync always`
	loadLabImage(t, "redis")
	c := served(t, "redis", "durable", "6379", []string{"-v", "durable:/data"}, "/bin/sh", "-c", serve)
	address := c.address() + ":6379"
	dial := func(ctx context.Context) (net.Conn,
		error) {
		return world.lab.Dial(ctx, "client", "tcp", address)
	}
	clients := workload.NewRedisAgain(dial, patience)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	clients.Start(ctx)
	for range 3 {
		before := clients.Seen().Answers
		c.migrateBy(restart)
		c.eventually("answers of redis on "+c.node, func() bool { return clients.Seen().Answers > before+50 })
	}
	stop()
	if seen := clients.Wait(); seen.Refused+seen.Silent+seen.Lost+seen.Doubled+seen.Errors > 0 ||
		seen.Connections < 4 {
		t.Errorf("clients saw %+v", seen)
	}
}

// TestRestartAsks: a container needs an answer of another one before it can serve: it gets the answer, even
// while it is on probation at the node to which it moves.
func TestRestartAsks(t *testing.T) {
	loadLabImage(t, "busybox")
	other := served(t, "busybox", "asked", "8080", nil, "/bin/sh", "-c",
		"echo the answer >/answer; exec httpd -f -p 8080 -h /")
	ask := fmt.Sprintf(
		`printf 'GET /answer HTTP/1.0\r\n\r\n' | nc %s 8080 | tail -n 1 >/got; grep answer /got || exit 4; exec httpd -f -p 8081 -h /`, other.address())
	quick := []string{"--stop-timeout", "100ms"} // httpd as the first process ignores SIGTERM
	c := served(t, "busybox", "asks", "8081", quick, "/bin/sh", "-c", ask)
	for range 2 {
		c.migrateBy(restart)
		if got := c.exec("/bin/cat", "/got").stdout; got != "the answer\n" {
			t.Errorf("on %s it got %q", c.node, got)
		}
	}
}

// TestRestartSick: a container's health check fails after its second start. The container is started again
// at the source, with its data there.
func TestRestartSick(t *testing.T) {
	const serve = `trap 'exit 0' TERM; n=$(cat /n 2>/dev/null || echo 0); echo $((n+1)) >/n; [ $n = 0 ] || touch /new; touch /dev/shm/up; echo ready; while :; do sleep 0.02; done`
	loadLabImage(t, "busybox")
	c := served(t, "busybox", "sick", "", []string{"--health-cmd", "echo something new; test -e " +
		"/dev/shm/up -a ! -e /new", "--start-timeout", "3s"}, "/bin/sh", "-c", serve)
	out, err := godwit(t.Context(), "a", "migrate", c.name, "b", "--mode", "restart", "--checkpoints", "2")
	if err != nil || out.code != 1 {
		t.Fatalf("%v, exit code %d: %s%s", err, out.code, out.stdout, out.stderr)
	}
	for _, words := range []string{"rolled-back", "stopped for", "did not become healthy", "something new"} {
		if !strings.Contains(out.stdout+out.stderr, words) {
			t.Errorf("it says nothing of %q: %s%s", words, out.stdout, out.stderr)
		}
	}
	c.gone("b")
	if i := c.inspect(); i.State != "running" {
		t.Errorf("it is %+v", i)
	}
	if n := c.exec("/bin/cat", "/n").stdout; n != "2\n" { // its file from b is not here
		t.Errorf("it was started %q times", n)
	}
	// Now it is unhealthy here, too, so it is not even stopped.
	out, err = godwit(t.Context(), "a", "migrate", c.name, "b", "--mode", "restart")
	if err != nil || out.code != 1 ||
		!strings.Contains(out.stdout+out.stderr, "would not become healthy at the target either") {
		t.Errorf("%v, exit code %d: %s%s", err, out.code, out.stdout, out.stderr)
	}
}

// served starts a container of one of the lab's images on node a, and waits until it serves.
func served(t *testing.T, image, name, port string, flags []string, command ...string) *container {
	t.Helper()
	c := &container{t: t, name: name, node: "a", volumes: volumesOf(flags)}
	t.Cleanup(c.remove)
	args := append(append([]string{"run", "-d", "--name", name}, flags...), image)
	c.id = strings.TrimSpace(must(t, "a", append(args, command...)...))
	if port == "" {
		c.awaitLog("ready")
		return c
	}
	c.eventually("an answer of "+name, func() bool {
		conn, err := world.lab.Dial(t.Context(), "client", "tcp", c.address()+":"+port)
		return err == nil && conn.Close() == nil
	})
	return c
}
