package pager

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/memory"
)

// ErrNoPager means that no pager fills a container's memory: none was started, or it has ended. Its report
// says how.
var ErrNoPager = errors.New("no memory is being filled")

// DialRemote connects to the pager that listens at a path for pages that stayed at the source
// (Config.Remote), and waits until it has its image.
func DialRemote(ctx context.Context, path string) (memory.RemotePages, error) {
	c := &remoteClient{answers: make(chan string, 1), bell: make(chan struct{}, 1), over: make(chan struct{})}
	err := byDirectory(path, func(short string) error {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: short, Net: "unix"})
		c.conn = conn
		return err
	})
	if err == nil {
		err = c.greet(ctx)
	}
	switch {
	case ctx.Err() != nil && err != nil:
		err = context.Cause(ctx)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET),
		errors.Is(err, io.EOF):
		err = ErrNoPager
	}
	if err != nil {
		if c.conn != nil {
			c.conn.Close()
		}
		return nil, fmt.Errorf("connect to the pager at %s: %w", path, err)
	}
	c.buffer = bufio.NewWriterSize(c.conn, remoteBuffer)
	c.encoder = memory.NewEncoder(c.buffer)
	go c.read()
	return c, nil
}

// remoteClient is the agent's end of the connection for remote pages.
type remoteClient struct {
	conn    *net.UnixConn
	reader  *bufio.Reader
	missing []memory.TaskMap
	most    int // maximum number of remote faults

	writing sync.Mutex
	buffer  *bufio.Writer
	encoder *memory.Encoder

	asking  sync.Mutex // one order at a time
	answers chan string

	bell chan struct{} // there is a remote fault
	over chan struct{} // closed when nothing more is read

	mu           sync.Mutex
	remoteFaults []memory.RemoteFault
	end          error // why nothing more is read; io.EOF: nothing is missing
}

var _ memory.RemotePages = (*remoteClient)(nil)

func (c *remoteClient) greet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	c.reader = bufio.NewReaderSize(c.conn, remoteBuffer)
	var err error
	if c.missing, err = readGreeting(c.reader); err != nil {
		return err
	}
	for _, m := range c.missing {
		for _, a := range m.Areas {
			c.most += int(a.Pages)
		}
	}
	return nil
}

// Missing lists the pages that were still at the source when the connection was made.
func (c *remoteClient) Missing() []memory.TaskMap { return c.missing }

// read processes the pager's messages.
func (c *remoteClient) read() {
	defer close(c.over)
	err := error(nil)
	for remoteFaults := 0; err == nil; {
		var one record
		if one, err = readRecord(c.reader); err != nil {
			err = c.explain(err)
			break
		}
		switch one.kind {
		case recordFault:
			if remoteFaults++; remoteFaults > c.most {
				err = fmt.Errorf("%w: it asks for more pages than are missing", memory.ErrMalformed)
				break
			}
			c.mu.Lock()
			c.remoteFaults = append(c.remoteFaults, memory.RemoteFault{Task: one.task, Address: one.address})
			c.mu.Unlock()
			c.ring()
		case recordDone:
			c.finish(io.EOF)
		case recordGivenUp:
			select {
			case c.answers <- one.text:
			default: // not requested
			}
		case recordRefused:
			err = errors.New(one.text)
		}
	}
	c.finish(fmt.Errorf("remote pages: %w", err))
}

func (c *remoteClient) explain(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		return errors.New("the pager has ended the connection")
	}
	return err
}

func (c *remoteClient) ring() {
	select {
	case c.bell <- struct{}{}:
	default:
	}
}

// finish records why nothing more is to be expected; the first reason counts.
func (c *remoteClient) finish(err error) {
	c.mu.Lock()
	if c.end == nil {
		c.end = err
	}
	c.mu.Unlock()
	c.ring()
}

// Next waits for the next page that must be fetched at once.
func (c *remoteClient) Next(ctx context.Context) (memory.RemoteFault, error) {
	for {
		c.mu.Lock()
		fault, there, end := memory.RemoteFault{}, len(c.remoteFaults) > 0, c.end
		if there && end == nil {
			fault, c.remoteFaults = c.remoteFaults[0], c.remoteFaults[1:]
		}
		more := len(c.remoteFaults) > 0
		c.mu.Unlock()
		if more || end != nil {
			c.ring() // for others who wait
		}
		if end != nil || there {
			return fault, end
		}
		select {
		case <-c.bell:
		case <-ctx.Done():
			return fault, context.Cause(ctx)
		}
	}
}

// Put sends pages. A refusal is returned by a later Put, or by Next. When nothing is missing any more,
// because others brought the pages or nobody needs them, Put is useless but no error.
func (c *remoteClient) Put(run memory.Run, data []byte) error {
	c.writing.Lock()
	err := c.encoder.Put(run, data)
	if err == nil {
		err = c.buffer.Flush()
	}
	c.writing.Unlock()
	if err == nil || errors.Is(err, memory.ErrMalformed) {
		return err
	}
	if err = c.broken(err); errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// lastWordsPatience is how long to wait for the other end's last message when nothing can be written any
// more: it has arrived by then.
const lastWordsPatience = 5 * time.Second

// broken returns why nothing can be written, which the other end may have reported. io.EOF: nothing is
// missing.
func (c *remoteClient) broken(err error) error {
	// fails on a closed connection, on which reading ends, too
	_ = c.conn.SetReadDeadline(time.Now().Add(lastWordsPatience))
	<-c.over
	_ = c.conn.Close() // it is of no use any more
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return c.end
	}
	return fmt.Errorf("remote pages: %w", err)
}

// GiveUp says that what is missing is lost.
func (c *remoteClient) GiveUp(ctx context.Context, fail bool) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	var order [memory.RunHeaderSize]byte
	binary.LittleEndian.PutUint32(order[12:], orderKill)
	if fail {
		binary.LittleEndian.PutUint32(order[12:], orderFail)
	}
	select {
	case <-c.answers: // to an order that nobody waited for any more
	default:
	}
	c.writing.Lock()
	_, err := c.conn.Write(order[:])
	c.writing.Unlock()
	if err != nil {
		return fmt.Errorf("give missing pages up: %w", c.broken(err))
	}
	told := func(text string) error {
		if text != "" {
			return fmt.Errorf("give missing pages up: %s", text)
		}
		return nil
	}
	select {
	case text := <-c.answers:
		return told(text)
	case <-c.over:
		select {
		// it was told before the end, which may follow at once from what was ordered
		case text := <-c.answers:
			return told(text)
		default:
		}
		if !fail {
			return nil // it ends, and with it the container
		}
		return fmt.Errorf("give missing pages up: %w", c.broken(io.ErrUnexpectedEOF))
	case <-ctx.Done():
		return fmt.Errorf("give missing pages up: %w", context.Cause(ctx))
	}
}

// Close ends the connection; the pager goes on. A write that met its end may have closed it already.
func (c *remoteClient) Close() error {
	err := c.conn.Close()
	<-c.over
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
