package criu

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// Relief gives room to connections that would stand still for good for want of memory in their
// receive queues.
//
// CRIU hands the kernel what a process had received and not read in pieces of 68 KiB, and the
// kernel packs it denser than what comes from a network. The room that is left is promised to the
// peer. When the queue is full the kernel packs all of it anew, in single pages (tcp_collapse in
// net/ipv4/tcp_input.c): that takes an eighth more than before, so the queue is beyond its limit,
// what had been promised room is dropped, and the window is closed in front of what the peer has
// sent. From Linux 6.17 on (until a receiver honours what it once promised, see RFC 7323, section
// 2.4) that kernel then drops all that the peer says, also that its own window is open; if the
// process waits for just that before it reads on, neither side ever moves.
type Relief struct {
	given map[uint64]bool // inodes of sockets: each once, or a peer could go on filling one that nobody reads
}

// NewRelief has given no room yet.
func NewRelief() *Relief { return &Relief{given: map[uint64]bool{}} }

const (
	// reliefSlack: a queue that is so near its limit has no room for a packet.
	reliefSlack = 4096
	// What a queue takes more when it is packed anew, and room for a window to open again: it must
	// be more than a sixteenth.
	reliefPart = 8
)

// Give looks at the TCP sockets of processes, and gives those room whose queue is full. It tells
// how many have a queue that is at least half full: as long as there are some, it may become one of
// those.
func (r *Relief) Give(pids []int) (tight int, err error) {
	if tight, err = eachTCP(pids, r.giveSocket); err != nil {
		return tight, fmt.Errorf("look at receive queues: %w", err)
	}
	return tight, nil
}

// giveSocket tells whether the socket's queue is at least half full.
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
