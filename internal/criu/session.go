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

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/inject"
)

// maxMessage bounds one message of CRIU's protocol. Requests contain lists of mounts and are usually a few
// kilobytes long.
const maxMessage = 1 << 20

// link is a connection that carries CRIU's protocol: one protobuf message in each packet of a
// SOCK_SEQPACKET socket, sometimes with descriptors.
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
		_ = c.Close() // the type is the error to report
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

// receive reads one message and the descriptors that came with it, as raw control data that can be passed
// on. The end of the connection is io.EOF.
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
	other   *otherProcess // started by another process, in place of process; nil: process is used
	tables  *tables       // replace the kernel's; nil: none
	mounts  *os.File      // its mount namespace; nil: this process's own
	reap    sync.Once
	reaped  chan struct{}
	waitErr error // when reaped is closed
}

// swrkFD is the descriptor on which CRIU finds its connection. Later descriptors are the caller's.
const swrkFD = 3

// criuEnvironment is small for speed: for every tmpfs, CRIU runs tar, which runs sh and gzip, during the
// freeze. Each of them searches PATH and loads a locale. HOME is missing so that no ~/.criu changes the
// options.
var criuEnvironment = [...]string{"PATH=/usr/bin:/usr/sbin:/bin:/sbin:/usr/local/bin:/usr/local/sbin",
	"LC_ALL=C"}

// sessionFiles are the files of a new CRIU, and the namespaces in which it runs.
type sessionFiles struct {
	stdio      [3]*os.File
	more       []*os.File // descriptors from 4 on
	namespaces uintptr    // made for it (CLONE_NEW…)
	network    *os.File   // the network namespace to enter; nil: this one
	// called in the thread that starts CRIU and has a mount namespace of its own; nil: nothing is called
	mounts  func() error
	cut     []int  // processes with replaced tables of mappings, see tables
	cutUsed bool   // with cut: also cut mappings that have pages
	scratch string // with cut: an empty directory
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
		Setpgid:    true, // so that a terminal's ^C does not reach CRIU
		Cloneflags: with.namespaces,
	}
	s := &session{link: l, process: cmd, reaped: make(chan struct{})}
	if err := s.start(with); err != nil {
		l.close()
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return s, nil
}

// start starts CRIU, which inherits the namespaces of the thread that starts it.
func (s *session) start(with sessionFiles) error {
	ownMounts := with.mounts != nil || len(with.cut) > 0
	if with.network == nil && !ownMounts {
		return s.process.Start()
	}
	err := inOwnThread(func() error {
		if with.network != nil {
			if err := unix.Setns(int(with.network.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network namespace %s: %w", with.network.Name(), err)
			}
		}
		if ownMounts {
			if err := s.changeMounts(with); err != nil {
				return err
			}
		}
		return s.process.Start()
	})
	if err != nil && s.tables != nil {
		s.tables.close()
	}
	if err != nil {
		s.closeMounts()
	}
	return err
}

// closeMounts lets the kernel undo the mounts of CRIU's namespace now. The kernel waits for all processors
// then, which must not happen when CRIU ends during the freeze.
func (s *session) closeMounts() {
	if s.mounts != nil {
		_ = s.mounts.Close() // it was only held
		s.mounts = nil
	}
}

// changeMounts gives this thread, and programs that it starts from now on, a new mount namespace, and
// changes mounts in it. The thread is locked and ends after that.
func (s *session) changeMounts(with sessionFiles) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace for CRIU: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make a mount namespace for CRIU: %w", err)
	}
	var err error
	if s.mounts, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
		return fmt.Errorf("hold the mount namespace of CRIU: %w", err)
	}
	if with.mounts != nil {
		if err := with.mounts(); err != nil {
			return err
		}
	}
	if len(with.cut) > 0 {
		s.tables, err = hideTables(with.scratch, with.cut, with.cutUsed)
	}
	return err
}

// inOwnThread runs f in a thread that ends with f, so that f can change attributes of its thread.
func inOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}

// setStdio keeps a nil *os.File from becoming a non-nil interface.
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

// warm returns when CRIU is loaded and answers, a few milliseconds after its start.
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
			// fails only on a closed socket, on which receive fails, too
			_ = s.conn.SetReadDeadline(time.Unix(1, 0))
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

// alive reports whether CRIU has not ended.
func (s *session) alive() bool {
	if s.other != nil {
		return s.other.alive()
	}
	return inject.ChildRuns(s.process.Process.Pid)
}

// killPatience is how long a killed CRIU may take to end. It takes longer only if the kernel does not
// release it, and then nothing more can be done.
const killPatience = 5 * time.Second

// kill ends CRIU and waits for it. It may be called more than once.
func (s *session) kill() {
	s.signalKill()
	s.collect()
	select {
	case <-s.reaped:
	case <-time.After(killPatience):
	}
	s.close()
}

// signalKill tells CRIU to end.
func (s *session) signalKill() {
	if s.other != nil {
		_ = kernel.PidfdKill(s.other.pidfd) // it may have ended already
		return
	}
	_ = s.process.Process.Kill() // as above
}

// pid returns CRIU's PID.
func (s *session) pid() int {
	if s.other != nil {
		return s.other.pid
	}
	return s.process.Process.Pid
}

// wait waits until CRIU has ended.
func (s *session) wait() error {
	s.collect()
	<-s.reaped
	return s.waitErr
}

// collect starts waiting for CRIU's end.
func (s *session) collect() {
	s.reap.Do(func() {
		go func() {
			if s.other != nil {
				s.waitErr = s.other.wait()
			} else {
				s.waitErr = s.process.Wait()
			}
			if s.tables != nil {
				s.tables.close()
			}
			close(s.reaped)
		}()
	})
}

// killUnlessDone kills CRIU unless done is called within patience after the end of ctx. After the kill
// receive fails, even if processes that CRIU made have its end of the connection.
func (s *session) killUnlessDone(ctx context.Context, patience time.Duration) (done func()) {
	over := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		select {
		case <-over:
		case <-time.After(patience):
			s.signalKill()
			_ = s.conn.SetDeadline(time.Unix(1, 0))
		}
	})
	return func() {
		unhook()
		close(over)
	}
}

// errEnded explains a failed receive: CRIU closed the connection, or it was interrupted.
func errEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		return errors.New("CRIU ended without an answer")
	}
	return err
}
