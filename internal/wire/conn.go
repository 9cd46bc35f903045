package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire/identity"
)

const (
	readBufferBytes = 64 << 10
	// corkBytes is the maximum size of a system call's write. Above about 256 KiB, larger writes save
	// nothing.
	corkBytes = 256 << 10
)

// Conn is a connection to a verified peer. It sends the data of a Write with as few system calls and
// segments as possible, instead of one small packet per TLS record.
type Conn struct {
	*tls.Conn
	peer identity.Peer
	raw  *rawConn
	// leave stops watching for the peer's removal from the cluster; nil: nothing watches.
	leave func()
	mu    sync.Mutex // one Write at a time
}

// attend makes the removal of the peer from the cluster close the connection. Error: identity.ErrRevoked.
func (c *Conn) attend(id *identity.Identity) (err error) {
	c.leave, err = id.Attend(c.ConnectionState().PeerCertificates, c.raw.TCPConn)
	return err
}

// Peer returns the node at the other end.
func (c *Conn) Peer() identity.Peer { return c.peer }

// Write encrypts all of p and then writes it.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.WriteAll([][]byte{p})
	return int(n), err
}

// WriteAll writes each part in TLS records of its own, so that the peer can read a part as soon as it
// arrives. It sends all parts together.
func (c *Conn) WriteAll(parts [][]byte) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.cork()
	var written int64
	var err error
	for _, part := range parts {
		var n int
		n, err = c.Conn.Write(part)
		written += int64(n)
		if err != nil {
			break
		}
	}
	if flushErr := c.raw.uncork(); err == nil {
		err = flushErr
	}
	return written, err
}

// Close closes the connection: at once if a Write is stuck, otherwise after notifying the peer.
func (c *Conn) Close() error {
	if c.leave != nil {
		c.leave()
	}
	if !c.mu.TryLock() {
		c.raw.TCPConn.Close()
		return c.Conn.Close()
	}
	defer c.mu.Unlock()
	return c.Conn.Close()
}

// rawConn is the TCP connection below TLS. crypto/tls writes each record of 16 KiB separately and reads
// little more than one at a time; rawConn batches records.
type rawConn struct {
	*net.TCPConn
	reader *bufio.Reader
	heard  *atomic.Int64 // bytes that have come

	mu      sync.Mutex
	corked  bool
	pending []byte
	failed  error // after a partial write, later records are worthless
}

func newRawConn(tcp *net.TCPConn) *rawConn {
	return &rawConn{TCPConn: tcp, reader: bufio.NewReaderSize(tcp, readBufferBytes), heard: &atomic.Int64{}}
}

// Read is called only by crypto/tls, which has one reader at a time.
func (r *rawConn) Read(p []byte) (int, error) {
	n, err := r.reader.Read(p)
	r.heard.Add(int64(n))
	return n, err
}

func (r *rawConn) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return 0, r.failed
	}
	if !r.corked {
		return r.TCPConn.Write(p)
	}
	r.pending = append(r.pending, p...)
	if len(r.pending) < corkBytes {
		return len(p), nil
	}
	return len(p), r.flush()
}

func (r *rawConn) cork() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.corked = true
}

func (r *rawConn) uncork() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.corked = false
	return r.flush()
}

func (r *rawConn) flush() error {
	if len(r.pending) == 0 || r.failed != nil {
		return r.failed
	}
	_, r.failed = r.TCPConn.Write(r.pending)
	r.pending = r.pending[:0]
	return r.failed
}

// handshakeLimit is how long a peer may take to say who it is.
var handshakeLimit = patience.Limit{Still: 10 * time.Second, Most: 40 * time.Second}

// handshake performs the TLS handshake. It continues as long as bytes arrive.
func (c *Conn) handshake(ctx context.Context, limit patience.Limit) error {
	ctx, cancel := limit.For(ctx, c.RemoteAddr().String(), patience.Count(c.raw.heard.Load))
	defer cancel()
	return patience.Explain(ctx, c.HandshakeContext(ctx))
}
