package access

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/godwit/godwit/internal/kernel"
)

// SocketPath returns the path of the socket for the command line.
func SocketPath(runDir string) string { return filepath.Join(runDir, "agent.sock") }

// Listen opens the unix socket. Its group decides who may use it, and the kernel checks that. If each call
// is checked against its caller's rights, all users may open it.
func Listen(runDir, group string, rights Rights) (net.Listener, error) {
	path := SocketPath(runDir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket of an earlier agent: %w", err)
	}
	gid, err := groupID(group)
	if err != nil {
		return nil, err
	}
	mask := 0o117 // The socket is never open to others, not even for a moment.
	if rights != nil {
		mask = 0o111 // each call is checked
	}
	old := syscall.Umask(mask)
	listener, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket for the command line: %w", err)
	}
	if err := os.Chown(path, 0, gid); err != nil {
		return nil, errors.Join(fmt.Errorf("socket for the command line: %w", err), listener.Close())
	}
	return listener, nil
}

// dyingPatience is how long the socket of a killed agent may still seem to answer: the kernel takes a while
// to end a process.
const dyingPatience = 3 * time.Second

// Answers reports whether an agent listens at a socket, and goes on listening.
func Answers(path string) bool {
	for until := time.Now().Add(dyingPatience); ; time.Sleep(50 * time.Millisecond) {
		connection, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		_ = connection.Close() // no data was sent
		if time.Now().After(until) {
			return true
		}
	}
}

func groupID(name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	group, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("group of the socket: %w; make it with \"groupadd --system %s\" or choose "+
			"one with --group", err, name)
	}
	return strconv.Atoi(group.Gid)
}

// localCredentials identifies the user at the other end of the unix socket (unix(7), SO_PEERCRED).
type localCredentials struct {
	credentials.TransportCredentials
}

// NewCredentials returns credentials that identify the caller to a server: its AuthInfo is a Peer.
func NewCredentials() credentials.TransportCredentials { return &localCredentials{} }

// Peer identifies a local caller.
type Peer struct {
	credentials.CommonAuthInfo
	UID, GID uint32
	PID      int32
	Groups   []uint32 // supplementary groups, when it connected
}

// AuthType implements credentials.AuthInfo.
func (Peer) AuthType() string { return "unix" }

func (*localCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.New("not a unix socket")
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var peer *syscall.Ucred
	var groups []uint32
	var failed error
	err = raw.Control(func(fd uintptr) {
		if peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET,
			syscall.SO_PEERCRED); failed == nil {
			groups, failed = kernel.PeerGroups(int(fd))
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, nil, fmt.Errorf("identify the caller of the socket: %w", err)
	}
	common := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return conn, Peer{CommonAuthInfo: common, UID: peer.Uid, GID: peer.Gid, PID: peer.Pid, Groups: groups},
		nil
}

func (*localCredentials) ClientHandshake(
	_ context.Context, _ string, conn net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return conn, nil, errors.New("for servers only")
}

func (*localCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}
func (c *localCredentials) Clone() credentials.TransportCredentials { return c }
func (*localCredentials) OverrideServerName(string) error           { return nil }
