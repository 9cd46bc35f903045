package criu

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
	"github.com/godwit/godwit/internal/kernel"
)

// Relief gives room to connections that would otherwise stall for ever, because their receive queues lack
// memory.
//
// CRIU passes received but unread data to the kernel in pieces of 68 KiB, which the kernel packs more
// densely than data from a network. The remaining room is promised to the peer. When the queue is full, the
// kernel packs all of it again, in single pages (tcp_collapse in net/ipv4/tcp_input.c), which takes an
// eighth more than before. So the queue is beyond its limit, the kernel drops data for which it had
// promised room, and the window closes in front of data that the peer has sent. From Linux 6.17 on (until a
// receiver honours what it once promised, see RFC 7323, section 2.4), the kernel then drops everything from
// the peer, including the news that the peer's own window is open. If the process waits for just that
// before it reads on, neither side ever continues.
type Relief struct {
	given map[uint64]bool // inodes of sockets: each once, or a peer could go on filling an unread one
}

// NewRelief returns a Relief that has given no room yet.
func NewRelief() *Relief { return &Relief{given: map[uint64]bool{}} }

const (
	// reliefSlack: a queue this close to its limit has no room for a packet.
	reliefSlack = 4096
	// The additional size of a queue that is packed again, and room for a window to open again, which must
	// be more than a sixteenth.
	reliefPart = 8
)

// Give checks the TCP sockets of processes, and gives room to those whose queue is full. It returns how
// many queues are at least half full: while there are any, one of them may become full.
func (r *Relief) Give(pids []int) (tight int, err error) {
	if tight, err = descriptors.EachTCP(pids, r.giveSocket); err != nil {
		return tight, fmt.Errorf("look at receive queues: %w", err)
	}
	return tight, nil
}

// giveSocket reports whether the socket's queue is at least half full.
func (r *Relief) giveSocket(sk int) (full bool, err error) {
	used, limit, err := kernel.ReceiveMemory(sk)
	if err != nil || used < limit/2 {
		return false, err
	}
	var status unix.Stat_t
	if err := unix.Fstat(sk, &status); err != nil || used+reliefSlack <= limit || r.given[status.Ino] {
		return true, err
	}
	r.given[status.Ino] = true
	return true, kernel.SetReceiveLimit(sk, max(used, limit)+max(used/reliefPart, reliefSlack))
}
