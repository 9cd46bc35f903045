package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// cacheConfig is an nginx that caches responses of its other server: over connections that it keeps (port
// 80), and over one for each request (port 81), which the other server ends after its answer. `?fresh=1`
// bypasses the cache.
const cacheConfig = `user root;
worker_processes 2;
error_log stderr;
pid /run/nginx.pid;
events { worker_connections 512; }
http {
	access_log off;
	proxy_cache_path /var/cache/nginx levels=1:2 keys_zone=all:1m max_size=1g inactive=1d;
	proxy_cache all;
	proxy_cache_valid 1d;
	proxy_cache_key $server_port$uri;
	proxy_cache_bypass $arg_fresh;
	upstream origin { server 127.0.0.1:8080; keepalive 4; }
	server {
		listen 80;
		location / { proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; add_header Cached $upstream_cache_status; }
	}
	server {
		listen 81;
		location / { proxy_pass http://127.0.0.1:8080; add_header Cached $upstream_cache_status; }
	}
	server { listen 127.0.0.1:8080; root /srv; }
}
`

const (
	cachedObjects = 16
	cacheClients  = 12
)

// cachedLines returns the number of lines of an object; some fit into one packet, some need many.
func cachedLines(number int) int { return []int{1, 100, 10_000, 100_000}[number%4] }

func cachedObject(number int) []byte {
	var text bytes.Buffer
	for line := range cachedLines(number) {
		fmt.Fprintf(&text, "%d.%d\n", number, line)
	}
	return text.Bytes()
}

// TestCache loads an nginx that sends requests to itself, over connections within the container, while it
// moves: each answer is complete and right, over old connections and over new ones, and so is the cache's
// content at the end.
func TestCache(t *testing.T) {
	t.Parallel()
	script := "mkdir -p /srv /var/cache/nginx; "
	for number := range cachedObjects {
		script += fmt.Sprintf("awk 'BEGIN { for (i = 0; i < %[2]d; i++) print \"%[1]d.\" i }' > /srv/%[1]d; ",
			number, cachedLines(number))
	}
	c, conn := server(t, "nginx", "80", "/bin/sh", "-c",
		script+"cat > /etc/nginx/nginx.conf <<'end'\n"+cacheConfig+"end\nexec nginx -g 'daemon off;'")
	defer conn.Close()
	readers := newCacheReaders(t, c.address())
	readers.all("MISS")
	readers.start()
	defer readers.end()
	moves := []string{preCopy, cold, preCopy, cold}
	if testing.Short() {
		moves = moves[:2]
	}
	for _, mode := range moves {
		before := readers.answers.Load()
		report := c.migrateBy(mode)
		t.Logf("%s to %s: stopped %.1f ms of %.1f ms", mode, c.node, report.DowntimeSeconds*1000,
			report.TotalSeconds*1000)
		c.eventually("answers of nginx on "+c.node,
			func() bool { return readers.answers.Load() > before+200 })
	}
	readers.end()
	readers.all("HIT")
	t.Logf("%d answers", readers.answers.Load())
}

// cacheReaders request objects and compare the answers.
type cacheReaders struct {
	t       *testing.T
	address string
	objects [cachedObjects][]byte
	working sync.WaitGroup
	stopped atomic.Bool
	answers atomic.Int64
}

func newCacheReaders(t *testing.T, address string) *cacheReaders {
	r := &cacheReaders{t: t, address: address}
	for number := range r.objects {
		r.objects[number] = cachedObject(number)
	}
	return r
}

// all requests all objects at both ports.
func (r *cacheReaders) all(cached string) {
	r.t.Helper()
	for _, port := range []string{"80", "81"} {
		reader := &cacheReader{readers: r, port: port}
		for number := range cachedObjects {
			if found, err := reader.ask(number, false); err != nil || found != cached {
				r.t.Errorf("port %s, object %d: %q, want %q: %v", port, number, found, cached, err)
			}
		}
		reader.close()
	}
}

func (r *cacheReaders) start() {
	for client := range cacheClients {
		reader := &cacheReader{readers: r, port: []string{"80", "81"}[client%2], keeps: client%4 < 2}
		r.working.Go(func() {
			defer reader.close()
			for turn := client; !r.stopped.Load(); turn++ {
				if _, err := reader.ask(turn*7%cachedObjects, turn%3 > 0); err != nil {
					r.t.Errorf("client %d, port %s, keeps its connection: %t, at %s: %v", client, reader.port,
						reader.keeps, time.Now().Format("05.000"), err)
					return
				}
				r.answers.Add(1)
			}
		})
	}
}

// end waits for the clients' last answers.
func (r *cacheReaders) end() {
	r.stopped.Store(true)
	r.working.Wait()
}

// cacheReader is one client.
type cacheReader struct {
	readers *cacheReaders
	port    string
	keeps   bool // it keeps its connection
	conn    net.Conn
	reader  *bufio.Reader
}

// ask requests an object, and returns the cache's status.
func (r *cacheReader) ask(number int, fresh bool) (cached string, err error) {
	if err := r.connect(); err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	path := fmt.Sprintf("/%d", number)
	if fresh {
		path += "?fresh=1"
	}
	if _, err := fmt.Fprintf(r.conn, "GET %s HTTP/1.1\r\nHost: cache\r\n\r\n", path); err != nil {
		return "", fmt.Errorf("ask for %s: %w", path, err)
	}
	response, err := http.ReadResponse(r.reader, nil)
	if err != nil {
		return "", fmt.Errorf("answer to %s: %w", path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	want := r.readers.objects[number]
	if err == nil && (response.StatusCode != http.StatusOK || !bytes.Equal(body, want)) {
		err = errors.New("it is wrong")
	}
	if err != nil {
		return "", fmt.Errorf("answer to %s, %s, %d bytes of %d: %w", path, response.Status, len(body),
			len(want), err)
	}
	if response.Close || !r.keeps {
		r.close()
	}
	return strings.TrimSpace(response.Header.Get("Cached")), nil
}

func (r *cacheReader) connect() (err error) {
	if r.conn == nil {
		if r.conn, err = world.lab.Dial(r.readers.t.Context(), "client",
			"tcp", r.readers.address+":"+r.port); err != nil {
			r.conn = nil
			return err
		}
		r.reader = bufio.NewReader(r.conn)
	}
	return r.conn.SetDeadline(time.Now().Add(patience))
}

func (r *cacheReader) close() {
	if r.conn != nil {
		_ = r.conn.Close()
		r.conn = nil
	}
}
