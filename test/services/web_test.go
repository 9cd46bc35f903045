package services

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// oneConn is an HTTP client with one connection that never reconnects.
type oneConn struct {
	conn   net.Conn
	url    string
	header http.Header // of all requests
	do     func(*http.Request) (*http.Response, error)
}

// connectHTTP implements HTTP/1.1 itself, because the library drops connections whose reuse it cannot
// decide soon enough; over TLS it uses the library, with HTTP/2 if the server can.
func connectHTTP(ctx context.Context, to address, scheme string) (oneConn, error) {
	conn, err := to.Dial(ctx)
	if err != nil {
		return oneConn{}, err
	}
	c := oneConn{conn: conn, url: scheme + "://" + to.hostPort}
	if scheme == "https" {
		transport := &http.Transport{
			DialContext: onlyConn(conn), MaxConnsPerHost: 1, ForceAttemptHTTP2: true,
			// the server made its certificate at its start
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		}
		c.do = transport.RoundTrip
		return c, nil
	}
	reader := bufio.NewReader(conn)
	c.do = func(request *http.Request) (*http.Response, error) {
		if err := request.Write(conn); err != nil {
			return nil, err
		}
		return http.ReadResponse(reader, request)
	}
	return c, nil
}

// request asks for a path and returns the whole answer.
func (c oneConn) request(ctx context.Context, method, path string, content []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	if c.header != nil {
		request.Header = c.header
	}
	defer context.AfterFunc(ctx, func() { _ = c.conn.Close() })()
	response, err := c.do(request)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("%s: %.200s", response.Status, body)
	}
	return body, nil
}

func (c oneConn) Close() error { return c.conn.Close() }

// getting requests the same path again and again.
type getting struct {
	oneConn
	path  string
	right func(nth int64, body []byte) error
}

func (g getting) Ask(ctx context.Context, nth int64) error {
	body, err := g.request(ctx, http.MethodGet, g.path, nil)
	if err != nil {
		return err
	}
	return g.right(nth, body)
}

// counted is for servers that count the requests for each path, and answer with the count.
func counted(scheme string) func(context.Context, address, int) (session, error) {
	return func(ctx context.Context, to address, number int) (session, error) {
		conn, err := connectHTTP(ctx, to, scheme)
		path := fmt.Sprintf("/%d", number)
		return getting{conn, path, func(nth int64, body []byte) error {
			if number == probe {
				return nil
			}
			return is(nil, string(body), fmt.Sprintf("%s %d\n", path, nth))
		}}, err
	}
}

// goTLS is a server in Go that counts its sessions in memory.
func goTLS() service {
	return service{
		name: "go-tls", port: 443,
		programs: map[string]program{"/usr/local/bin/tlsserver": goSource("tlsserver")},
		command:  []string{"tlsserver"}, connect: counted("https"),
	}
}

// nginx serves a file of 2 MB.
func nginx() service {
	const size = 2 << 20
	content := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	return service{
		name: "nginx", port: 80, packages: []string{"nginx"},
		setup:   `yes 0123456789abcdef | tr -d '\n' | head -c 2097152 >/var/www/html/file`,
		command: []string{"nginx", "-g", "daemon off;"},
		connect: func(ctx context.Context, to address, _ int) (session, error) {
			conn, err := connectHTTP(ctx, to, "http")
			return getting{conn, "/file", func(_ int64, body []byte) error {
				if !bytes.Equal(body, content) {
					return fmt.Errorf("%d bytes that are not those of the file", len(body))
				}
				return nil
			}}, err
		},
	}
}
