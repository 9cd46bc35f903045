package criu

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// client is a TCP connection from the client's namespace.
type client struct {
	t     testing.TB
	conn  net.Conn
	lines *bufio.Reader
	last  int
}

// dial connects, trying until the server listens.
func (c *container) dial() *client {
	c.t.Helper()
	address := c.subnet + ".1:7000"
	for deadline := time.Now().Add(5 * time.Second); ; {
		conn, err := dialIn(c.clientNetns, address)
		if err == nil {
			c.t.Cleanup(func() { _ = conn.Close() })
			return &client{t: c.t, conn: conn, lines: bufio.NewReader(conn)}
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("dial %s: %v", address, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// dialIn makes the socket in another network namespace; it stays there.
func dialIn(netns, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		f, err := os.Open(netns)
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			_ = f.Close()
		}
		if err != nil {
			done <- result{err: err}
			return
		}
		conn, err := (&net.Dialer{Timeout: time.Second, FallbackDelay: -1}).Dial("tcp4", address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func (c *client) send(line string) error {
	must(c.t, c.conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err := fmt.Fprintln(c.conn, line)
	return err
}

func (c *client) ask(line string) (string, error) {
	if err := c.send(line); err != nil {
		return "", err
	}
	answer, err := c.lines.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// count requests the next number and checks it.
func (c *client) count() {
	c.t.Helper()
	answer, err := c.ask("count")
	if err != nil {
		c.t.Fatalf("the connection broke after %d answers: %v", c.last, err)
	}
	c.last++
	if answer != fmt.Sprint(c.last) {
		c.t.Fatalf("answer %q, want %d", answer, c.last)
	}
}

// do makes the workload do something.
func (c *client) do(what string) {
	c.t.Helper()
	answer, err := c.ask("do " + what)
	if err != nil || answer != "ok" {
		c.t.Fatalf("do %s: %q, %v", what, answer, err)
	}
}

// undo makes the workload undo everything that it did.
func (c *client) undo() {
	c.t.Helper()
	if answer, err := c.ask("undo"); err != nil || answer != "ok" {
		c.t.Fatalf("undo: %q, %v", answer, err)
	}
}
