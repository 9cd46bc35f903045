package criu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// maxMessage bounds one message of CRIU's protocol. Requests carry lists of mounts; a few kilobytes are usual.
const maxMessage = 1 << 20

// link is a connection that carries CRIU's protocol: one protobuf message in each packet of a SOCK_SEQPACKET socket,
// sometimes with descriptors.
type link struct {
	conn *net.UnixConn
	buf  []byte
}

// newLink takes over the descriptor.
func newLink(fd int, name string) (*link, error) {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close() // FileConn has its own copy
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use socket %s: %w", name, err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close() // the type is what is wrong
		return nil, fmt.Errorf("use socket %s: it is a %T, want a unix socket", name, c)
	}
	return &link{conn: conn, buf: make([]byte, maxMessage)}, nil
}

func (l *link) send(m proto.Message, rights []byte) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	_, _, err = l.conn.WriteMsgUnix(data, rights, nil)
	return err
}

// receive reads one message and the descriptors that came with it, as raw control data that can be sent on. The end of
// the connection is io.EOF.
func (l *link) receive(m proto.Message) (rights []byte, err error) {
	oob := make([]byte, unix.CmsgSpace(16*4))
	n, oobn, flags, _, err := l.conn.ReadMsgUnix(l.buf, oob)
	if err != nil {
		return nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return nil, fmt.Errorf("message of more than %d bytes or 16 descriptors", maxMessage)
	}
	if n == 0 {
		return nil, io.EOF
	}
	return oob[:oobn], proto.Unmarshal(l.buf[:n], m)
}

func (l *link) close() { _ = l.conn.Close() } // nothing is lost: every message is acknowledged by one

// session is a running `criu swrk` and the connection to it.
type session struct {
	*link
	process *exec.Cmd
	reaped  sync.Once
	waitErr error
}

// swrkFD is the descriptor on which CRIU finds its connection. Those after it are the caller's.
const swrkFD = 3

// criuEnvironment is small for speed: CRIU runs tar, which runs sh and gzip, for every tmpfs, inside the freeze. They
// look through PATH and load a locale each time. HOME is missing so that no ~/.criu changes the options.
var criuEnvironment = [...]string{"PATH=/usr/bin:/usr/sbin:/bin:/sbin:/usr/local/bin:/usr/local/sbin", "LC_ALL=C"}

// sessionFiles are what a new CRIU gets, and the namespaces that it runs in.
type sessionFiles struct {
	stdio      [3]*os.File
	more       []*os.File // descriptors from 4 on
	namespaces uintptr    // that are made for it (CLONE_NEW…)
	network    *os.File   // the network namespace that it enters; nil: this one
}

// startSession starts CRIU.
func startSession(path string, with sessionFiles) (*session, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	server := os.NewFile(uintptr(pair[1]), "criu-server")
	defer server.Close()
	l, err := newLink(pair[0], "criu-client")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, "swrk", fmt.Sprint(swrkFD))
	cmd.Env = criuEnvironment[:]
	setStdio(cmd, with.stdio)
	cmd.ExtraFiles = append([]*os.File{server}, with.more...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // a terminal's ^C is not for CRIU
		Cloneflags: with.namespaces,
	}
	if err := startIn(with.network, cmd); err != nil {
		l.close()
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return &session{link: l, process: cmd}, nil
}

// startIn starts a program in a network namespace, which it gets from the thread that starts it.
func startIn(network *os.File, cmd *exec.Cmd) error {
	if network == nil {
		return cmd.Start()
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is in the other namespace, and ends with this function
		if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
			started <- fmt.Errorf("enter network namespace %s: %w", network.Name(), err)
			return
		}
		started <- cmd.Start()
	}()
	return <-started
}

// setStdio avoids that a nil *os.File becomes a non-nil interface.
func setStdio(cmd *exec.Cmd, stdio [3]*os.File) {
	if stdio[0] != nil {
		cmd.Stdin = stdio[0]
	}
	if stdio[1] != nil {
		cmd.Stdout = stdio[1]
	}
	if stdio[2] != nil {
		cmd.Stderr = stdio[2]
	}
}

// warm returns when CRIU is loaded and answers, which takes a few milliseconds after its start.
func (s *session) warm(ctx context.Context) (*rpc.CriuVersion, error) {
	stop := s.interruptOn(ctx)
	defer stop()
	request := &rpc.CriuReq{Type: rpc.CriuReqType_VERSION.Enum(), KeepOpen: proto.Bool(true)}
	if err := s.send(request, nil); err != nil {
		return nil, fmt.Errorf("ask CRIU for its version: %w", err)
	}
	var answer rpc.CriuResp
	if _, err := s.receive(&answer); err != nil {
		return nil, fmt.Errorf("ask CRIU for its version: %w", err)
	}
	if !answer.GetSuccess() || answer.GetVersion() == nil {
		return nil, fmt.Errorf("ask CRIU for its version: it answers %v", &answer)
	}
	return answer.GetVersion(), nil
}

// interruptOn makes receive fail when ctx ends, until the returned function is called.
func (s *session) interruptOn(ctx context.Context) (stop func()) {
	var mu sync.Mutex
	over := false
	unhook := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			_ = s.conn.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed socket, on which receive fails too
		}
	})
	return func() {
		unhook()
		mu.Lock()
		defer mu.Unlock()
		over = true
		_ = s.conn.SetReadDeadline(time.Time{})
	}
}

// alive tells whether CRIU has not ended.
func (s *session) alive() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, s.process.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo == 0
}

// kill ends CRIU and collects it. It may be called more than once.
func (s *session) kill() {
	_ = s.process.Process.Kill() // it may have ended already
	_ = s.wait()                 // that it was killed is no news
	s.close()
}

// wait collects CRIU.
func (s *session) wait() error {
	s.reaped.Do(func() { s.waitErr = s.process.Wait() })
	return s.waitErr
}

// errEnded explains a receive that failed: CRIU closed the connection, or it was interrupted.
func errEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		return errors.New("CRIU ended without an answer")
	}
	return err
}
