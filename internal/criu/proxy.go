package criu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"
)

// The restore proxy stands between runc and CRIU at a restore. runc starts it in place of CRIU. The proxy
// starts the real CRIU at once and holds the request until the agent lets it continue. The agent listens on
// a unix socket; proxy and agent exchange lines of JSON:
//
//	proxy: ready        the request is here and CRIU is loaded
//	agent: go          the images are here, restore
//	proxy: restored     all processes and sockets exist, none runs
//	agent: resume      they may run (anything else, or the end of the connection: they never will)
//	proxy: recorded     that they run is on record (if the agent's go has asked for this)
//	agent: open        their network is open, let them run (anything else: they never will)
//	proxy: resumed      they run
//	proxy: failed       they do not run (or, with uncertain, nobody knows)
//
// The program on disk may have been replaced since the agent started: then the proxy is of another release.

// proxyMessage is a line between proxy and agent.
type proxyMessage struct {
	Kind      string      `json:"kind"`
	Root      string      `json:"root,omitempty"`      // go: another root file system
	Lazy      bool        `json:"lazy,omitempty"`      // go: memory is filled later
	Opens     bool        `json:"opens,omitempty"`     // go: report when there is a record, and wait for open
	Files     []proxyFile `json:"files,omitempty"`     // go: files from outside
	PID       int         `json:"pid,omitempty"`       // resumed
	At        int64       `json:"at,omitempty"`        // resumed: nanoseconds since 1970
	Error     string      `json:"error,omitempty"`     // failed
	Uncertain bool        `json:"uncertain,omitempty"` // failed: after the processes were allowed to run
}

// proxyFile is an open file of the agent.
type proxyFile struct {
	Key string `json:"key"`
	FD  int    `json:"fd"`
}

const (
	kindReady    = "ready"
	kindGo       = "go"
	kindRestored = "restored"
	kindResume   = "resume"
	kindResumed  = "resumed"
	kindRecorded = "recorded"
	kindOpen     = "open"
	kindFailed   = "failed"
)

// Environment of the proxy.
const (
	envProxy  = "GODWIT_GATE"
	envRecord = "GODWIT_GATE_RECORD"

	envCgroupNamespace = "GODWIT_GATE_CGROUP_NAMESPACE"
	envPlaceholder     = "GODWIT_GATE_FORERUNNER"
)

// ProxySettings make the criu of a `runc restore` a proxy.
type ProxySettings struct {
	Socket string // on which ListenProxy listens
	Record string // made durable before anything runs
	Tool   Tool   // the real CRIU

	// CgroupNamespace says that the container has a cgroup namespace of its own. CRIU makes one only if it
	// also manages cgroups, which takes time and is the engine's task. So the proxy makes the namespace and
	// starts CRIU in it.
	CgroupNamespace bool

	// Placeholder is the path of a socket that the proxy makes if the engine must find the container's
	// first process before that exists: see AwaitPlaceholder. Empty: no placeholder is needed.
	Placeholder string
}

// ProxyEnv returns the environment for `runc restore`. The caller adds a PATH that begins with a directory
// in which `criu` is a link to this program.
func ProxyEnv(s ProxySettings) []string {
	env := []string{envProxy + "=" + s.Socket, envRecord + "=" + s.Record, envCRIU + "=" + s.Tool.Path}
	if s.CgroupNamespace {
		env = append(env, envCgroupNamespace+"=1")
	}
	if s.Placeholder != "" {
		env = append(env, envPlaceholder+"="+s.Placeholder)
	}
	return env
}

// maxProxyLine bounds a line between proxy and agent; the longest line contains an error's text.
const maxProxyLine = 64 << 10

// proxyConn carries proxy messages.
type proxyConn struct {
	conn    net.Conn
	decoder *json.Decoder
}

func newProxyConn(c net.Conn) *proxyConn { return &proxyConn{conn: c, decoder: json.NewDecoder(c)} }

func (c *proxyConn) send(m proxyMessage) error {
	if len(m.Error) > maxProxyLine/2 {
		m.Error = m.Error[:maxProxyLine/2]
	}
	return json.NewEncoder(c.conn).Encode(m)
}

func (c *proxyConn) receive() (proxyMessage, error) {
	var m proxyMessage
	err := c.decoder.Decode(&m)
	return m, err
}

// Proxy is the agent's side of one restore proxy.
type Proxy struct {
	listener *net.UnixListener
	mu       sync.Mutex // guards conn against Close
	conn     *proxyConn
	closed   bool
}

// ProxyOptions change runc's request to CRIU.
type ProxyOptions struct {
	Root string // the container's root file system, a mount point; "" keeps runc's
	// LazyPages leaves out the pages that can be filled while the processes run. The process that fills
	// them listens in the work directory (ListenLazy) before Go is called.
	LazyPages bool
	// Inherit are files, open for reading and writing, by the keys of SharedFiles. CRIU opens them again.
	Inherit map[string]*os.File
	// Open is called when the record is made, right before the first process runs; nil: nothing is called.
	// The sockets acknowledge packets that reach them, so no packet may arrive before. After an error the
	// processes never run.
	Open func() error
}

// Resumed describes a container that runs again.
type Resumed struct {
	PID int       // of its first process, in the proxy's PID namespace
	At  time.Time // when it was resumed
}

// ErrUncertain is wrapped by errors of Go after which only Ran can tell whether the container runs.
var ErrUncertain = errors.New("it is not known whether the processes run")

// ListenProxy listens for one proxy on a unix socket at path. It replaces an old socket.
func ListenProxy(path string) (*Proxy, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for the restore proxy: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the restore proxy: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close() // the first error counts
		return nil, fmt.Errorf("listen for the restore proxy: %w", err)
	}
	return &Proxy{listener: l}, nil
}

// WaitReady returns when the proxy has runc's request and a warm CRIU.
func (p *Proxy) WaitReady(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = p.listener.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c, err := p.listener.AcceptUnix()
	if err != nil {
		return fmt.Errorf("wait for the restore proxy: %w", firstOf(ctx.Err(), err))
	}
	_ = p.listener.Close() // there is only one proxy; this also removes the socket's file
	p.mu.Lock()
	p.conn = newProxyConn(c)
	if p.closed {
		_ = c.Close() // Close was called before
	}
	p.mu.Unlock()
	m, err := p.receive(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("wait for the restore proxy: %w", err)
	case m.Kind == kindFailed:
		return fmt.Errorf("wait for the restore proxy: %s", m.Error)
	case m.Kind != kindReady:
		return fmt.Errorf("wait for the restore proxy: it says %q, want %q", m.Kind, kindReady)
	}
	return nil
}

// receive reads the proxy's next message; the end of ctx interrupts it.
func (p *Proxy) receive(ctx context.Context) (proxyMessage, error) {
	stop := context.AfterFunc(ctx, func() { _ = p.conn.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	m, err := p.conn.receive()
	if err == nil {
		return m, nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the proxy ended: `runc restore` or CRIU failed or was killed")
	}
	return proxyMessage{}, firstOf(ctx.Err(), err)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Go lets CRIU restore the current contents of the images directory. When all sockets and processes exist,
// and before the first of them runs, it calls beforeResume. If that fails, or ctx ends before it, nothing
// will ever run. Otherwise the record is made durable, and the processes run. An error means that nothing
// ran and nothing will, unless errors.Is(err, ErrUncertain).
func (p *Proxy) Go(ctx context.Context, options ProxyOptions, beforeResume func() error) (Resumed, error) {
	if p.conn == nil {
		return Resumed{}, errors.New("restore: the proxy is not ready")
	}
	start := proxyMessage{
		Kind: kindGo, Root: options.Root, Lazy: options.LazyPages, Opens: options.Open != nil,
	}
	for key, file := range options.Inherit {
		start.Files = append(start.Files, proxyFile{Key: key, FD: int(file.Fd())})
	}
	if err := p.conn.send(start); err != nil {
		return Resumed{}, p.giveUp(fmt.Errorf("restore: tell the proxy: %w", err))
	}
	m, err := p.receive(ctx)
	if err == nil && m.Kind != kindRestored {
		err = unexpected(m)
	}
	if err != nil {
		return Resumed{}, p.giveUp(fmt.Errorf("restore: %w", err))
	}
	if err := firstOf(beforeResume(), ctx.Err()); err != nil {
		return Resumed{}, p.giveUp(fmt.Errorf("restore: %w", err))
	}
	if err := p.conn.send(proxyMessage{Kind: kindResume}); err != nil {
		return Resumed{},
			p.giveUp(fmt.Errorf("restore: allow the processes to run: %w: %w", ErrUncertain, err))
	}
	return p.awaitResumed(context.WithoutCancel(ctx), options.Open) // the answer comes or the proxy ends
}

// awaitResumed opens the network when there is a record, and waits until the processes run.
func (p *Proxy) awaitResumed(ctx context.Context, open func() error) (Resumed, error) {
	m, err := p.receive(ctx)
	recorded := err == nil && m.Kind == kindRecorded
	if opens := recorded || err == nil && m.Kind == kindResumed; opens && open != nil {
		if err := open(); err != nil { // the proxy withdraws the record if it can
			return Resumed{}, p.giveUp(fmt.Errorf("restore: %w: %w", ErrUncertain, err))
		}
	}
	if recorded {
		_ = p.conn.send(proxyMessage{Kind: kindOpen}) // if the proxy has ended, receive reports that
		m, err = p.receive(ctx)
	}
	switch {
	case err != nil:
		return Resumed{}, fmt.Errorf("restore: %w: %w", ErrUncertain, err)
	case m.Kind != kindResumed:
		return Resumed{}, fmt.Errorf("restore: %w", unexpected(m))
	}
	return Resumed{PID: m.PID, At: time.Unix(0, m.At)}, nil
}

// unexpected makes an error of an unexpected message.
func unexpected(m proxyMessage) error {
	switch {
	case m.Kind != kindFailed:
		return fmt.Errorf("the proxy says %q", m.Kind)
	case m.Uncertain:
		return fmt.Errorf("%w: %s", ErrUncertain, m.Error)
	default:
		return errors.New(m.Error)
	}
}

// giveUp closes the connection, on which the proxy ends, and returns the error.
func (p *Proxy) giveUp(err error) error {
	_ = p.Close() // the error given counts
	return err
}

// Close closes the socket. A proxy that has not been allowed to resume ends, and none of its processes will
// ever run.
func (p *Proxy) Close() error {
	_ = p.listener.Close() // already closed when the proxy is connected
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.conn == nil {
		return nil
	}
	err := p.conn.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
