package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/lab/workload"
)

// server starts a container of one of the lab's images on node a, and connects a client.
func server(t *testing.T, name, port string, command ...string) (*container, net.Conn) {
	t.Helper()
	loadLabImage(t, name)
	c := &container{t: t, name: name, node: "a"}
	t.Cleanup(c.remove)
	c.id = strings.TrimSpace(must(t, "a", append([]string{"run", "-d", "--name", name, name}, command...)...))
	var conn net.Conn
	c.eventually("an answer of "+name, func() (answers bool) {
		var err error
		conn, err = world.lab.Dial(t.Context(), "client", "tcp", c.address()+":"+port)
		return err == nil
	})
	return c, conn
}

// loadLabImage loads one of the lab's images on node a, until the end of the test.
func loadLabImage(t *testing.T, name string) {
	t.Helper()
	archive, err := labimage.Build(t.Context(), name, filepath.Join(lab.StateDirectory, "images"))
	if err != nil {
		t.Fatal(err)
	}
	if err := loadImage(t.Context(), "a", archive); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeImage(t, name) })
}

// removeImage removes the image from both nodes, so that they are as before. Parallel tests load and move
// images, too.
func removeImage(t *testing.T, name string) {
	for _, node := range nodes() {
		var out output
		var err error
		labtest.Within(patience, func() bool {
			out, err = godwit(context.Background(), node, "image", "rm", name)
			return !strings.Contains(out.stderr, "try again when that is done")
		})
		if err != nil || out.code != 0 && !strings.Contains(out.stderr, "no such image") {
			t.Errorf("remove image %s from %s: %v, exit code %d: %s", name, node, err, out.code, out.stderr)
		}
	}
}

// TestRedis counts with a Redis that moves in rounds, over one connection: every answer comes, once, and is
// right.
func TestRedis(t *testing.T) {
	t.Parallel()
	c, conn := server(t, "redis", "6379")
	counter := workload.NewRedisCounter(conn)
	if err := counter.Fill(32 << 20); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	counter.Start(ctx, 500)
	for range 3 {
		before := counter.Answers()
		c.migrateBy(preCopy)
		c.eventually("answers of redis on "+c.node, func() bool { return counter.Answers() > before+50 })
	}
	stop()
	counted, err := counter.Result(patience)
	if err != nil || counted.Errors+counted.Lost+counted.Doubled > 0 || !counted.SameConnection {
		t.Errorf("the client saw %+v, %v", counted, err)
	}
}

// TestNginx has a client that requests a page again and again over one connection while nginx and its
// workers move.
func TestNginx(t *testing.T) {
	t.Parallel()
	// An agent without CAP_SYS_RESOURCE, as on some virtual machines, cannot move processes of other users.
	c, conn := server(t, "nginx", "80", "/bin/sh", "-c",
		`sed -i 's/^user .*/user root;/; s/http {/& keepalive_requests 1000000000;/' /etc/nginx/nginx.conf; exec nginx -g 'daemon off;'`)
	defer conn.Close()
	stop, answered := make(chan struct{}), make(chan error, 1)
	var answers atomic.Int64
	go func() { answered <- askAll(conn, stop, &answers) }()
	for range 3 {
		before := answers.Load()
		c.migrateBy(preCopy)
		c.eventually("answers of nginx on "+c.node,
			func() bool { return answers.Load() > before+50 || len(answered) > 0 })
	}
	close(stop)
	if err := <-answered; err != nil {
		t.Errorf("after %d answers: %v", answers.Load(), err)
	}
}

// askAll sends requests until stop, and expects each answer to be complete.
func askAll(conn net.Conn, stop chan struct{}, answers *atomic.Int64) error {
	reader := bufio.NewReader(conn)
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: nginx\r\n\r\n"); err != nil {
			return err
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK ||
			!strings.Contains(string(body), "Welcome to nginx") {
			return fmt.Errorf("status %s, %w: %.200q", response.Status, err, body)
		}
		answers.Add(1)
	}
}
