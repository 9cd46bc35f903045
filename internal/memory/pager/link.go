package pager

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

const (
	remoteBuffer = 64 << 10
	faultsAtOnce = 1024             // records in one write
	maxAnswers   = 16               // that an agent does not read
	acceptPause  = time.Second / 10 // after a temporary error
	lastPatience = time.Second      // for the agent to read the last messages
)

// link is the pager's end of the connection for remote pages: only the newest connection counts.
type link struct {
	filler   *filler
	listener *net.UnixListener
	path     string
	fresh    func() // writes the report

	mu     sync.Mutex  // taken after the lock of a family
	conn   *remoteConn // nil: nobody is connected
	closed bool
}

// byDirectory calls use with a path for the same socket that is short enough (107 bytes, unix(7)).
func byDirectory(path string, use func(short string) error) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}

// listenRemote makes the socket. Connections wait until serve is called. It replaces an old socket.
func listenRemote(path string) (*link, error) {
	l := &link{path: path}
	err := byDirectory(path, func(short string) error {
		if err := os.Remove(short); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		var err error
		if l.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"}); err != nil {
			return err
		}
		l.listener.SetUnlinkOnClose(false) // by then the number may mean another directory
		return os.Chmod(short, 0o600)
	})
	if err != nil {
		return nil, fmt.Errorf("listen for remote pages at %s: %w", path, err)
	}
	return l, nil
}

// serve accepts connections for a filler until the link is closed.
func (l *link) serve(f *filler) {
	l.filler = f
	f.faultRemote, f.noRemote = l.faultRemote, l.noRemote
	go func() {
		for {
			conn, err := l.listener.AcceptUnix()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				time.Sleep(acceptPause) // descriptors or memory are short
			default:
				l.replace(conn)
			}
		}
	}()
}

// replace makes a connection the current one. Nothing of the previous one is in progress then.
func (l *link) replace(conn *net.UnixConn) {
	c := &remoteConn{link: l, conn: conn, bell: make(chan struct{}, 1), ended: make(chan struct{}),
		written: make(chan struct{})}
	closed := false
	l.end(func() {
		if closed = l.closed; !closed {
			l.conn = c
		}
	})
	if closed {
		conn.Close()
		return
	}
	f := l.filler
	for _, m := range f.order { // pages for which processes already wait
		m.mu.Lock()
		for page := range m.waiting {
			at := m.slots[page/slotPages]
			l.faultRemote(remoteFault{m.task, at.address + uint64(page%slotPages*f.pageSize),
				page % slotPages}, at)
		}
		m.mu.Unlock()
	}
	go c.run()
}

// end ends the present connection, and then calls next with the lock, when no page is requested.
func (l *link) end(next func()) {
	l.mu.Lock()
	old := l.conn
	if l.conn = nil; old != nil {
		old.replaced = true
	}
	l.mu.Unlock()
	if old != nil {
		_ = old.conn.CloseRead() // it may have ended
		<-old.ended
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.filler.order {
		for _, one := range m.slots {
			if one.remote != nil {
				one.remote.remoteFault = mask{}
			}
		}
	}
	next()
}

// faultRemote requests a page, once. It never waits for the network.
func (l *link) faultRemote(page remoteFault, at *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	word, bit := &at.remote.remoteFault[page.page/wordBits], uint64(1)<<(page.page%wordBits)
	if l.conn == nil || *word&bit != 0 {
		return
	}
	*word |= bit
	l.conn.remoteFaults = append(l.conn.remoteFaults, page)
	l.conn.ring()
}

// noRemote reports that no page is missing any more.
func (l *link) noRemote() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.ring()
	}
}

// close ends the link when the memory is complete. The connected agent has been told.
func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	c := l.conn
	l.mu.Unlock()
	_ = l.listener.Close() // nobody uses it after this
	_ = os.Remove(l.path)  // it may be gone with the container
	if c == nil {
		return
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(lastPatience)) // the agent may be gone
	_ = c.conn.CloseRead()                                    // its orders have been answered
	<-c.ended
}

// remoteConn is a connection.
type remoteConn struct {
	link    *link
	conn    *net.UnixConn
	bell    chan struct{} // there may be something to write
	ended   chan struct{} // closed when reading and writing have ended
	written chan struct{} // closed when writing has ended

	// The link's lock guards these.
	remoteFaults []remoteFault
	answers      []record
	last         bool // there will be no more: the connection ends
	done         bool // completeness was reported

	replaced bool
}

func (c *remoteConn) ring() {
	select {
	case c.bell <- struct{}{}:
	default:
	}
}

func (c *remoteConn) run() {
	defer close(c.ended)
	go c.write()
	err := c.read()
	c.link.mu.Lock()
	if c.replaced {
		err = errReplaced
	}
	if c.last = true; !errors.Is(err, io.EOF) {
		c.answers = append(c.answers, record{kind: recordRefused, text: err.Error()})
	}
	c.link.mu.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(lastPatience)) // it may be closed
	c.ring()
	<-c.written
	c.link.mu.Lock()
	if c.link.conn == c {
		c.link.conn = nil
	}
	c.link.mu.Unlock()
}

// read processes incoming data until the connection ends.
func (c *remoteConn) read() error {
	r := bufio.NewReaderSize(c.conn, remoteBuffer)
	for {
		var header [memory.RunHeaderSize]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return err
		}
		if binary.LittleEndian.Uint32(header[:]) == 0 {
			if err := c.obey(binary.LittleEndian.Uint32(header[12:])); err != nil {
				return err
			}
			continue
		}
		run, err := memory.ParseRun(header)
		if err == nil {
			err = c.link.filler.arrive(run, r)
		}
		if err != nil {
			return err
		}
	}
}

// obey carries out an order.
func (c *remoteConn) obey(order uint32) error {
	answer := record{kind: recordGivenUp}
	switch order {
	case orderFail:
		if err := c.link.filler.giveUp(); err != nil {
			answer.text = err.Error()
		}
	case orderKill:
	default:
		return fmt.Errorf("%w: order %d", memory.ErrMalformed, order)
	}
	c.link.mu.Lock()
	c.answers = append(c.answers, answer)
	many := len(c.answers) > maxAnswers
	c.link.mu.Unlock()
	c.ring()
	if order == orderKill {
		c.link.filler.fail(errGivenUp)
	}
	if many {
		return errors.New("the agent does not read")
	}
	return nil
}

// errReplaced ends a connection. Only one counts, because the data of two would not be in order.
var errReplaced = errors.New("another connection has taken its place")

// errGivenUp says that a container was killed because its missing pages were given up.
var errGivenUp = errors.New("the pages that were missing were given up")

// write writes reports until the connection ends.
func (c *remoteConn) write() {
	defer close(c.written)
	defer c.conn.Close()
	greeting, err := encodeGreeting(c.link.filler.missing(c.link.filler.pageSize))
	for err == nil {
		if len(greeting) > 0 {
			_, err = c.conn.Write(greeting)
		}
		over := c.link.filler.remoteLeft.Load() == 0
		if over && !c.done {
			c.link.fresh() // the agent reads it after the report of completeness
		}
		var last bool
		if greeting, last = c.take(over); len(greeting) > 0 ||
			over != (c.link.filler.remoteLeft.Load() == 0) {
			continue
		}
		if last {
			return
		}
		<-c.bell
	}
}

// take returns what to write next; over allows the report that nothing is missing; last: there will never
// be more.
func (c *remoteConn) take(over bool) (data []byte, last bool) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range c.answers {
		data = one.encode(data)
	}
	n := min(len(c.remoteFaults), faultsAtOnce)
	for _, one := range c.remoteFaults[:n] {
		data = record{kind: recordFault, task: one.task, address: one.address}.encode(data)
	}
	c.answers = nil
	if c.remoteFaults = c.remoteFaults[n:]; len(c.remoteFaults) == 0 {
		c.remoteFaults = nil // so that what was written is let go
	}
	if over && !c.done {
		c.done = true
		data = record{kind: recordDone}.encode(data)
	}
	return data, c.last
}
