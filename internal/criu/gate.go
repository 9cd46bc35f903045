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

// The gate stands between runc and CRIU at a restore. runc starts it in place of CRIU; it starts
// the real CRIU at once and holds the request until the agent lets it go. The agent listens on a
// unix socket; gate and agent exchange lines of JSON:
//
//	gate: ready        the request is here and CRIU is loaded
//	agent: go          the images are here, restore
//	gate: restored     all processes and sockets exist, none runs
//	agent: resume      they may run (anything else, or the end of the connection: they never will)
//	gate: recorded     that they run is on record (if the agent's go has asked for this)
//	agent: open        their network is open, let them run (anything else: they never will)
//	gate: resumed      they run
//	gate: failed       they do not run (or, with uncertain, nobody knows)
//
// The program on the disk may have been replaced since the agent started: then the gate is another release.

// gateMessage is one line between gate and agent.
type gateMessage struct {
	Kind      string     `json:"kind"`
	Root      string     `json:"root,omitempty"`      // go: another root file system
	Lazy      bool       `json:"lazy,omitempty"`      // go: memory is filled later
	Opens     bool       `json:"opens,omitempty"`     // go: say when there is a record, and wait for open
	Files     []gateFile `json:"files,omitempty"`     // go: what comes from outside
	PID       int        `json:"pid,omitempty"`       // resumed
	At        int64      `json:"at,omitempty"`        // resumed: nanoseconds since 1970
	Error     string     `json:"error,omitempty"`     // failed
	Uncertain bool       `json:"uncertain,omitempty"` // failed: after the processes were allowed to run
}

// gateFile is an open file of the agent.
type gateFile struct {
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

// Environment of the gate.
const (
	envGate   = "GODWIT_GATE"
	envRecord = "GODWIT_GATE_RECORD"

	envCgroupNamespace = "GODWIT_GATE_CGROUP_NAMESPACE"
	envForerunner      = "GODWIT_GATE_FORERUNNER"
)

// GateSettings make the criu of one `runc restore` a gate.
type GateSettings struct {
	Socket string // on which ListenGate listens
	Record string // file that is made durably before anything runs
	Tool   Tool   // the real CRIU

	// CgroupNamespace says that the container has a cgroup namespace of its own. CRIU makes one
	// only if it also manages cgroups, which takes time and is the engine's task, so the gate makes
	// it and starts CRIU in it.
	CgroupNamespace bool

	// Forerunner is a socket that the gate makes if the engine is to find the container's first
	// process before that is there: see AwaitForerunner. Empty: it is not.
	Forerunner string
}

// GateEnv is the environment for `runc restore`. Its PATH must begin with a directory in which
// `criu` is a link to this program: the caller adds that.
func GateEnv(s GateSettings) []string {
	env := []string{envGate + "=" + s.Socket, envRecord + "=" + s.Record, envCRIU + "=" + s.Tool.Path}
	if s.CgroupNamespace {
		env = append(env, envCgroupNamespace+"=1")
	}
	if s.Forerunner != "" {
		env = append(env, envForerunner+"="+s.Forerunner)
	}
	return env
}

// maxGateLine bounds a line between gate and agent; the longest carries an error's text.
const maxGateLine = 64 << 10

// gateConn carries gate messages.
type gateConn struct {
	conn    net.Conn
	decoder *json.Decoder
}

func newGateConn(c net.Conn) *gateConn { return &gateConn{conn: c, decoder: json.NewDecoder(c)} }

func (c *gateConn) send(m gateMessage) error {
	if len(m.Error) > maxGateLine/2 {
		m.Error = m.Error[:maxGateLine/2]
	}
	return json.NewEncoder(c.conn).Encode(m)
}

func (c *gateConn) receive() (gateMessage, error) {
	var m gateMessage
	err := c.decoder.Decode(&m)
	return m, err
}

// Gate is the agent's side of one gate.
type Gate struct {
	listener *net.UnixListener
	mu       sync.Mutex // guards conn against Close
	conn     *gateConn
	closed   bool
}

// GateOptions change what runc asked of CRIU.
type GateOptions struct {
	Root string // root file system of the container, a mount point; "" keeps runc's
	// LazyPages leaves out the pages that can be filled when the processes run. Who fills them
	// listens in the work directory (ListenLazy) before Go is called.
	LazyPages bool
	// Inherit are files, open for reading and writing, by the keys of SharedFiles. CRIU opens them anew.
	Inherit map[string]*os.File
	// Open is called when the record is made, right before the first process runs; nil: nothing is. The
	// sockets acknowledge what reaches them, so nothing may before. An error: the processes never will run.
	Open func() error
}

// Resumed tells of a container that runs again.
type Resumed struct {
	PID int       // of its first process, in the gate's pid namespace
	At  time.Time // when it was let go
}

// ErrUncertain is wrapped by errors of Go after which only Ran can tell whether the container runs.
var ErrUncertain = errors.New("it is not known whether the processes run")

// ListenGate listens for one gate on a unix socket at path. An old socket at path is replaced.
func ListenGate(path string) (*Gate, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for the restore gate: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the restore gate: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close() // the first error counts
		return nil, fmt.Errorf("listen for the restore gate: %w", err)
	}
	return &Gate{listener: l}, nil
}

// WaitReady returns when the gate has runc's request and a warm CRIU.
func (g *Gate) WaitReady(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = g.listener.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c, err := g.listener.AcceptUnix()
	if err != nil {
		return fmt.Errorf("wait for the restore gate: %w", firstOf(ctx.Err(), err))
	}
	_ = g.listener.Close() // one gate only; the socket's file goes with it
	g.mu.Lock()
	g.conn = newGateConn(c)
	if g.closed {
		_ = c.Close() // Close came first
	}
	g.mu.Unlock()
	m, err := g.receive(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("wait for the restore gate: %w", err)
	case m.Kind == kindFailed:
		return fmt.Errorf("wait for the restore gate: %s", m.Error)
	case m.Kind != kindReady:
		return fmt.Errorf("wait for the restore gate: it says %q, want %q", m.Kind, kindReady)
	}
	return nil
}

// receive reads the gate's next message; the end of ctx cuts it short.
func (g *Gate) receive(ctx context.Context) (gateMessage, error) {
	stop := context.AfterFunc(ctx, func() { _ = g.conn.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	m, err := g.conn.receive()
	if err == nil {
		return m, nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the gate ended: `runc restore` or CRIU failed or was killed")
	}
	return gateMessage{}, firstOf(ctx.Err(), err)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Go lets CRIU restore from what is now in the images directory. When all sockets and processes
// exist and before the first of them runs it calls beforeResume; if that fails, or ctx ends before
// it, nothing will ever run. Otherwise the record is made durably, and the processes run. An error
// means that nothing ran and nothing will, unless errors.Is(err, ErrUncertain).
func (g *Gate) Go(ctx context.Context, options GateOptions, beforeResume func() error) (Resumed, error) {
	if g.conn == nil {
		return Resumed{}, errors.New("restore: the gate is not ready")
	}
	start := gateMessage{
		Kind: kindGo, Root: options.Root, Lazy: options.LazyPages, Opens: options.Open != nil,
	}
	for key, file := range options.Inherit {
		start.Files = append(start.Files, gateFile{Key: key, FD: int(file.Fd())})
	}
	if err := g.conn.send(start); err != nil {
		return Resumed{}, g.giveUp(fmt.Errorf("restore: tell the gate: %w", err))
	}
	m, err := g.receive(ctx)
	if err == nil && m.Kind != kindRestored {
		err = unexpected(m)
	}
	if err != nil {
		return Resumed{}, g.giveUp(fmt.Errorf("restore: %w", err))
	}
	if err := firstOf(beforeResume(), ctx.Err()); err != nil {
		return Resumed{}, g.giveUp(fmt.Errorf("restore: %w", err))
	}
	if err := g.conn.send(gateMessage{Kind: kindResume}); err != nil {
		return Resumed{}, g.giveUp(fmt.Errorf("restore: allow the processes to run: %w: %w", ErrUncertain, err))
	}
	return g.awaitResumed(context.WithoutCancel(ctx), options.Open) // the answer comes or the gate ends
}

// awaitResumed opens the network when there is a record, and waits until the processes run.
func (g *Gate) awaitResumed(ctx context.Context, open func() error) (Resumed, error) {
	m, err := g.receive(ctx)
	recorded := err == nil && m.Kind == kindRecorded
	if opens := recorded || err == nil && m.Kind == kindResumed; opens && open != nil {
		if err := open(); err != nil { // the gate takes the record back, if it can
			return Resumed{}, g.giveUp(fmt.Errorf("restore: %w: %w", ErrUncertain, err))
		}
	}
	if recorded {
		_ = g.conn.send(gateMessage{Kind: kindOpen}) // if the gate has ended, receive says so
		m, err = g.receive(ctx)
	}
	switch {
	case err != nil:
		return Resumed{}, fmt.Errorf("restore: %w: %w", ErrUncertain, err)
	case m.Kind != kindResumed:
		return Resumed{}, fmt.Errorf("restore: %w", unexpected(m))
	}
	return Resumed{PID: m.PID, At: time.Unix(0, m.At)}, nil
}

// unexpected makes an error of a message that is not the one waited for.
func unexpected(m gateMessage) error {
	switch {
	case m.Kind != kindFailed:
		return fmt.Errorf("the gate says %q", m.Kind)
	case m.Uncertain:
		return fmt.Errorf("%w: %s", ErrUncertain, m.Error)
	default:
		return errors.New(m.Error)
	}
}

// giveUp closes the connection, on which the gate ends, and passes the error on.
func (g *Gate) giveUp(err error) error {
	_ = g.Close() // the error given counts
	return err
}

// Close closes the socket. A gate that has not been allowed to resume ends: nothing of it will ever run.
func (g *Gate) Close() error {
	_ = g.listener.Close() // closed already when the gate is connected
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.conn == nil {
		return nil
	}
	err := g.conn.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
