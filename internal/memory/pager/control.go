package pager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Agent and pager exchange JSON objects, one in each packet of a unix socket pair:
//
//	agent: setup      where to listen, whose container it is
//	pager: ok         it listens and has a guard, or an error
//	agent: serve      with two descriptors: the image
//	pager: ok         it waits for CRIU, or an error
//	agent: restored   all processes are there, and none runs yet; without it nothing is filled before they
//	                  do
//	agent: resumed    the processes run; without it the background begins a little later
//
// If the connection ends before CRIU has come, the pager ends, and nothing runs. After that it does not
// need the agent.
type message struct {
	Kind   string `json:"kind"`
	Error  string `json:"error,omitempty"`
	Setup  *setup `json:"setup,omitempty"`
	images [2]*os.File
}

type setup struct {
	WorkDir string `json:"work_dir"` // of CRIU
	Report  string `json:"report"`
	Cgroup  string `json:"cgroup"`
	Remote  string `json:"late,omitempty"`
}

const (
	kindSetup    = "setup"
	kindServe    = "serve"
	kindRestored = "restored"
	kindResumed  = "resumed"
	kindOK       = "ok"
	kindFailed   = "failed"

	maxMessage = 16 << 10
)

// channel carries messages.
type channel struct{ conn *net.UnixConn }

// newChannel takes over the file.
func newChannel(file *os.File) (*channel, error) {
	defer file.Close() // FileConn has its own copy
	c, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use the connection between agent and pager: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the connection between agent and pager is a %T", c), c.Close())
	}
	return &channel{conn}, nil
}

func (c *channel) send(m message) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var rights []byte
	if m.images[0] != nil {
		rights = unix.UnixRights(int(m.images[0].Fd()), int(m.images[1].Fd()))
	}
	_, _, err = c.conn.WriteMsgUnix(data, rights, nil)
	return err
}

// receive reads one message; io.EOF at the end.
func (c *channel) receive() (message, error) {
	data, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(2*4))
	n, oobn, flags, _, err := c.conn.ReadMsgUnix(data, oob)
	if err != nil {
		return message{}, err
	}
	if n == 0 {
		return message{}, io.EOF
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return message{}, fmt.Errorf("a message of more than %d bytes", maxMessage)
	}
	return parseMessage(data[:n], oob[:oobn])
}

func parseMessage(data, oob []byte) (message, error) {
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return message{}, fmt.Errorf("a message between agent and pager: %w", err)
	}
	controls, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(controls) == 0 {
		return m, err
	}
	fds, err := unix.ParseUnixRights(&controls[0])
	if err == nil && len(fds) != len(m.images) {
		err = fmt.Errorf("%d descriptors, want %d", len(fds), len(m.images))
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd) // the earlier error counts
		}
		return message{}, fmt.Errorf("a message between agent and pager: %w", err)
	}
	for i, fd := range fds {
		m.images[i] = os.NewFile(uintptr(fd), "image")
	}
	return m, nil
}
