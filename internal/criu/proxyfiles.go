package criu

import (
	"fmt"
	"net"
	"os"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/kernel/inject"
)

// inherit gives CRIU open files of the agent. CRIU was started before these files were known, so that its
// start takes no time now. CRIU takes descriptors only from its parent, so it is made to take these
// (inject.GiveFiles).
func (p *proxyProcess) inherit(o *rpc.CriuOpts, wanted []proxyFile) error {
	if len(wanted) == 0 {
		return nil
	}
	agent, err := peerPID(p.agent.conn)
	if err != nil {
		return err
	}
	var files []*os.File
	defer func() {
		for _, file := range files {
			_ = file.Close() // CRIU has its own descriptor
		}
	}()
	for _, one := range wanted {
		file, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", agent, one.FD), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("open file %s of the agent: %w", one.Key, err)
		}
		files = append(files, file)
	}
	fds, err := inject.GiveFiles(p.real.pid(), files)
	if err != nil {
		return fmt.Errorf("hand files over to CRIU: %w", err)
	}
	for i, fd := range fds {
		o.InheritFd = append(o.InheritFd,
			&rpc.InheritFd{Key: proto.String(wanted[i].Key), Fd: proto.Int32(int32(fd))})
	}
	return nil
}

// peerPID returns the process at the other end of a connection: the process that connected or listens, or
// that has made both ends.
func peerPID(conn net.Conn) (int, error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("find the process at the other end: the connection is a %T", conn)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = firstOf(err, credErr); err != nil {
		return 0, fmt.Errorf("find the process at the other end: %w", err)
	}
	return int(cred.Pid), nil
}
