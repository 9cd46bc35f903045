package criu

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// stateCloseWait is TCP_CLOSE_WAIT of include/net/tcp_states.h: the peer has closed, and the socket may send.
const stateCloseWait = 8

// SyncSegments restores the segment size of restored processes' connections. CRIU connects their sockets in
// repair mode, which leaves all of them with small segments until the path's MTU changes, which on loopback
// never happens. IPv6 connections on loopback keep small segments.
func SyncSegments(pids []int) error {
	_, err := eachTCP(pids, func(sk int) (bool, error) {
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
