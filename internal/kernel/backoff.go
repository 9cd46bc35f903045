package kernel

import (
	"time"

	"golang.org/x/sys/unix"
)

// Backoff waits 50 microseconds at first, and longer each time, up to 2 ms.
type Backoff struct{ next time.Duration }

// NewBackoff returns a Backoff that begins with 50 microseconds.
func NewBackoff() *Backoff { return &Backoff{next: 50 * time.Microsecond} }

// Wait sleeps in the kernel: the Go scheduler's timers round up to a millisecond when a process is idle.
func (b *Backoff) Wait() {
	t := unix.NsecToTimespec(b.next.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal may cut it short, and the caller just checks earlier
	b.next = min(b.next*5/4, 2*time.Millisecond)
}
