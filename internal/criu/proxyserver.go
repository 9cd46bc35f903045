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
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/criu/vet"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// ProxyServerCommand is the hidden command of this program that becomes a restore proxy for an engine that
// starts CRIU by its command line: see ProxyServerMain.
const ProxyServerCommand = "restore-gatekeeper" // as in release v0.1.0

// ProxyServer has the settings of a restore proxy for an engine that only starts a CRIU wrapper.
type ProxyServer struct {
	Proxy  string `json:"Gate"` // socket on which ListenProxy listens; the key is that of release v0.1.0
	Record string // made durable before anything runs
	Socket string // made for the wrapper
	Images string // directory
	Work   string // directory, for CRIU's log
	// the container's cgroup, as for cgroup.Open: processes that a failed restore leaves in it are
	// killed
	Cgroup string
	Agreed vet.Agreed // what the images may say
}

// Start starts the proxy and returns when its socket exists. The process lives until the restore has ended,
// or the agent gives it up; the caller of Start waits for the process.
func (s ProxyServer) Start(executable string) (*exec.Cmd, error) {
	settings, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the proxy server: %w", err)
	}
	defer read.Close()
	cmd := exec.Command(executable, ProxyServerCommand, string(settings))
	cmd.ExtraFiles = []*os.File{write}
	err = kernel.StartLasting(cmd)
	_ = write.Close() // the proxy server has its own
	if err != nil {
		return nil, fmt.Errorf("start the proxy server: %w", err)
	}
	if _, err := io.ReadFull(read, make([]byte, 1)); err != nil {
		_ = cmd.Process.Kill() // it may have ended already
		err = errors.Join(errors.New("it has ended"), cmd.Wait())
		return nil, fmt.Errorf("start the proxy server: %w", err)
	}
	return cmd, nil
}

// readyFD is the descriptor on which the proxy server reports that its socket exists.
const readyFD = 3

// ProxyServerMain is the main function of a proxy server. It returns the exit code.
func ProxyServerMain(args []string) int {
	err := proxyServerMain(args)
	if err == nil {
		return 0
	}
	if !errors.Is(err, errNoted) {
		fmt.Fprintln(os.Stderr, "godwit restore proxy server:", err)
	}
	return 1
}

func proxyServerMain(args []string) error {
	if len(args) != 1 {
		return errors.New("must be started with its settings")
	}
	var s ProxyServer
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	p := &proxyProcess{record: s.Record, workDir: s.Work, cgroup: s.Cgroup, agreed: s.Agreed}
	return p.end(p.serve(s))
}

// serve runs a proxy with a wrapper from start to end.
func (p *proxyProcess) serve(s ProxyServer) error {
	conn, err := net.Dial("unix", s.Proxy)
	if err != nil {
		return fmt.Errorf("connect to the agent: %w", err)
	}
	p.agent = newProxyConn(conn)
	if p.lock, err = lockRecord(p.record); err != nil {
		return err
	}
	hello, err := p.awaitCRIU(s.Socket)
	if err != nil {
		return err
	}
	options, err := restoreOptions(hello.Args)
	if err != nil {
		return err
	}
	for path, fd := range map[string]**int32{s.Images: &options.ImagesDirFd, s.Work: &options.WorkDirFd} {
		dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open directory %s: %w", path, err)
		}
		*fd = proto.Int32(int32(dir)) // stays open: CRIU opens it through /proc/PROXY/fd
	}
	request := rpc.CriuReq{Type: rpc.CriuReqType_RESTORE.Enum(), Opts: options}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	if _, err := p.real.warm(ctx); err != nil {
		return fmt.Errorf("start CRIU: %w", errEnded(ctx, err))
	}
	if err := p.waitForGo(&request); err != nil {
		return err
	}
	if err := p.real.send(&request, nil); err != nil {
		return fmt.Errorf("send the request to CRIU: %w", err)
	}
	return p.relay()
}

// awaitCRIU waits for the process that becomes CRIU, or for the agent to give up.
func (p *proxyProcess) awaitCRIU(socket string) (wrapperHello, error) {
	var hello wrapperHello
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hello, fmt.Errorf("make the proxy server's socket: %w", err)
	}
	// CRIU looks for the directories of its requests in the process that listens (SO_PEERCRED of unix(7)),
	// which is this process.
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return hello, fmt.Errorf("make the proxy server's socket: %w", err)
	}
	defer listener.Close()
	if err := os.Chmod(socket, 0o600); err != nil {
		return hello, fmt.Errorf("make the proxy server's socket: %w", err)
	}
	ready := os.NewFile(readyFD, "ready")
	_, err = ready.Write([]byte{1})
	if err = errors.Join(err, ready.Close()); err != nil {
		return hello, fmt.Errorf("say that the socket is there: %w", err)
	}
	given := p.agent.watch(func() { _ = listener.SetDeadline(time.Unix(1, 0)) })
	conn, err := listener.AcceptUnix()
	given()
	if err != nil {
		return hello, fmt.Errorf("wait for the engine to start CRIU: %w", err)
	}
	l2 := &link{conn: conn, buf: make([]byte, maxMessage)}
	n, err := conn.Read(l2.buf)
	if err == nil {
		err = json.Unmarshal(l2.buf[:n], &hello)
	}
	if err != nil {
		return hello, fmt.Errorf("hear of the engine's CRIU: %w", err)
	}
	other, err := newOtherProcess(conn)
	if err != nil {
		return hello, err
	}
	p.real = &session{link: l2, other: other, reaped: make(chan struct{})}
	return hello, nil
}

// watch calls gone when the agent closes its end, until the returned function is called. Nothing is read.
func (c *proxyConn) watch(gone func()) (stop func()) {
	ended := make(chan struct{})
	raw, err := c.conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return func() {}
	}
	go func() {
		defer close(ended)
		var buf [1]byte
		_ = raw.Read(func(fd uintptr) bool {
			n, _, err := unix.Recvfrom(int(fd), buf[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				return false
			}
			if n <= 0 {
				gone()
			}
			return true
		})
	}()
	return func() {
		_ = c.conn.SetReadDeadline(time.Unix(1, 0)) // ends the wait
		<-ended
		_ = c.conn.SetReadDeadline(time.Time{})
	}
}

// restoreOptions makes a request of the engine's command line. It sets the agent's part itself: the wrapper
// enters cgroups, and the agent holds the network.
func restoreOptions(args []string) (*rpc.CriuOpts, error) {
	root := argumentsOf(args, "--root")
	if len(root) != 1 {
		return nil, errors.New("the engine gives CRIU no --root")
	}
	o := &rpc.CriuOpts{
		LogFile:           proto.String(restoreLog),
		LogLevel:          proto.Int32(logWarnings),
		Root:              proto.String(root[0]),
		RstSibling:        proto.Bool(slices.Contains(args, "--restore-sibling")),
		ManageCgroupsMode: rpc.CriuCgMode_IGNORE.Enum(),
		NetworkLock:       rpc.CriuNetworkLockMethod_SKIP.Enum(),
		NotifyScripts:     proto.Bool(true),
		TcpEstablished:    proto.Bool(true),
		FileLocks:         proto.Bool(true),
		LinkRemap:         proto.Bool(true),
		EvasiveDevices:    proto.Bool(true),
		OrphanPtsMaster:   proto.Bool(true),
		AutoExtMnt:        proto.Bool(true),
		ExtSharing:        proto.Bool(true),
		ExtMasters:        proto.Bool(true),
		EnableFs:          append(argumentsOf(args, "--enable-fs"), "ramfs"),
	}
	for _, mount := range argumentsOf(args, "--ext-mount-map") {
		key, value, found := strings.Cut(mount, ":")
		if mount == "auto" || !found || value == "" {
			continue
		}
		o.ExtMnt = append(o.ExtMnt, &rpc.ExtMountMap{Key: proto.String(key), Val: proto.String(value)})
	}
	if profile := argumentsOf(args, "--lsm-profile"); len(profile) == 1 {
		o.LsmProfile = proto.String(profile[0])
	}
	return o, nil
}

// otherProcess is a CRIU that is not a child of this process.
type otherProcess struct {
	pid   int
	pidfd *os.File
}

// newOtherProcess finds the process at the other end of a connection.
func newOtherProcess(conn *net.UnixConn) (*otherProcess, error) {
	pid, err := peerPID(conn)
	if err != nil {
		return nil, err
	}
	pidfd, err := kernel.PidfdOpen(pid)
	if err != nil {
		return nil, fmt.Errorf("find the engine's CRIU: %w", err)
	}
	return &otherProcess{pid: pid, pidfd: pidfd}, nil
}

func (p *otherProcess) alive() bool {
	alive, err := kernel.PidfdAlive(p.pidfd)
	return err == nil && alive
}

// wait returns when the process has ended. Only its parent learns its exit code.
func (p *otherProcess) wait() error { return kernel.PidfdWait(context.Background(), p.pidfd) }

// killRest kills what CRIU has made if CRIU did not do so itself.
func (p *proxyProcess) killRest() {
	if p.cgroup == "" {
		killChildren()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	if group, err := cgroup.Open(p.cgroup); err == nil {
		if err := group.Kill(ctx); err != nil {
			p.note(err.Error())
		}
	}
}
