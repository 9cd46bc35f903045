package criu

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
	"github.com/godwit/godwit/internal/kernel"
)

// States of sockets, include/net/tcp_states.h.
const (
	stateEstablished = 1
	stateCloseWait   = 8 // the peer has closed, and the socket may send
	stateListen      = 10
)

// SyncSegments restores the segment size of restored processes' connections. CRIU connects their sockets in
// repair mode, which leaves all of them with small segments until the path's MTU changes, which on loopback
// never happens. IPv6 connections on loopback keep small segments.
func SyncSegments(pids []int) error {
	_, err := descriptors.EachTCP(pids, func(sk int) (bool, error) {
		info, err := unix.GetsockoptTCPInfo(sk, unix.IPPROTO_TCP, unix.TCP_INFO)
		// sockets in other states send nothing any more
		if err != nil || info.State != stateEstablished && info.State != stateCloseWait {
			return false, err
		}
		return true, kernel.SyncSegmentSize(sk)
	})
	if err != nil {
		return fmt.Errorf("give connections their segment size: %w", err)
	}
	return nil
}
