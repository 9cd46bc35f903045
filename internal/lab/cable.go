package lab

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// early is how long before its time a packet may leave. It is less than a thread needs to wake up.
const early = 20 * time.Microsecond

// readBatch bounds how many packets are taken from one end before others have their turn.
const readBatch = 32

// cable carries packets between two TUN devices: one thread that sleeps until a packet arrives or has to
// leave.
type cable struct {
	mu      sync.Mutex // held while the thread works, not while it sleeps
	ends    [2]int     // descriptors of the TUN devices
	pipes   [2]*pipe   // pipes[i] carries what was read from ends[i] to the other end
	wakeFD  int        // an eventfd that wakes the thread
	closing bool
	done    chan struct{}
}

func newCable(ends [2]int, shape Link) (*cable, error) {
	wakeFD, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	seed := uint64(time.Now().UnixNano())
	c := &cable{
		ends:   ends,
		pipes:  [2]*pipe{newPipe(shape, seed), newPipe(shape, seed+1)},
		wakeFD: wakeFD,
		done:   make(chan struct{}),
	}
	go c.run()
	return c, nil
}

// now returns the monotonic clock in nanoseconds.
func now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail for this clock
	return ts.Nano()
}

// set changes the properties of the link.
func (c *cable) set(shape Link) {
	c.mu.Lock()
	for _, p := range c.pipes {
		p.set(shape, now())
	}
	c.mu.Unlock()
	c.wake()
}

// replace replaces the TUN device of one end. Packets under way to this end arrive at the new device.
func (c *cable) replace(end, fd int) {
	c.mu.Lock()
	old := c.ends[end]
	c.ends[end] = fd
	c.mu.Unlock()
	c.wake()
	_ = unix.Close(old)
}

func (c *cable) counters() [2]Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all [2]Counters
	for i, p := range c.pipes {
		all[i] = p.counted
		all[i].BufferedNow = p.held.bytes()
	}
	return all
}

func (c *cable) close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.wake()
	<-c.done
	for _, fd := range append(c.ends[:], c.wakeFD) {
		_ = unix.Close(fd)
	}
}

func (c *cable) wake() {
	one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	_, _ = unix.Write(c.wakeFD, one) // fails only if it is already full, and then the thread is awake
}

func (c *cable) run() {
	defer close(c.done)
	runtime.LockOSThread() // no other goroutine should wait for this thread
	buffer := make([]byte, maxPacket)
	ready := [2]bool{true, true}
	for {
		c.mu.Lock()
		if c.closing {
			c.mu.Unlock()
			return
		}
		for end := range c.ends {
			if ready[end] {
				c.receive(end, buffer)
			}
		}
		c.deliver()
		wait, fds := c.nextWait(), c.pollSet()
		c.mu.Unlock()
		ready = sleep(fds, wait)
	}
}

// receive reads the packets that wait at one end.
func (c *cable) receive(end int, buffer []byte) {
	for range readBatch {
		n, err := unix.Read(c.ends[end], buffer)
		if err != nil {
			return // nothing waits, or the interface is gone
		}
		f, err := readFrame(buffer[:n])
		if err != nil {
			continue
		}
		c.pipes[end].admit(now(), f, buffer[:n])
	}
}

// deliver sends the packets that are due.
func (c *cable) deliver() {
	for end, p := range c.pipes {
		for {
			data, ok := p.due(now() + int64(early))
			if !ok {
				break
			}
			if _, err := unix.Write(c.ends[1-end], data); err != nil {
				p.counted.ReceiveFails++
			}
		}
	}
}

// nextWait returns the time until the next packet has to leave, or a negative value if none is held.
func (c *cable) nextWait() time.Duration {
	wait := time.Duration(-1)
	for _, p := range c.pipes {
		at, ok := p.held.next()
		if !ok {
			continue
		}
		left := max(time.Duration(at-now())-early, 0)
		if wait < 0 || left < wait {
			wait = left
		}
	}
	return wait
}

func (c *cable) pollSet() []unix.PollFd {
	return []unix.PollFd{
		{Fd: int32(c.ends[0]), Events: unix.POLLIN},
		{Fd: int32(c.ends[1]), Events: unix.POLLIN},
		{Fd: int32(c.wakeFD), Events: unix.POLLIN},
	}
}

// sleep waits for packets, a wake-up or the timeout, and returns which ends have packets.
func sleep(fds []unix.PollFd, wait time.Duration) (ready [2]bool) {
	var timeout *unix.Timespec
	if wait >= 0 {
		ts := unix.NsecToTimespec(int64(wait))
		timeout = &ts
	}
	if _, err := unix.Ppoll(fds, timeout, nil); err != nil {
		if !errors.Is(err, unix.EINTR) {
			// This descriptor was replaced meanwhile. Reading both is harmless; the pause keeps a fault
			// from spinning.
			time.Sleep(time.Millisecond)
		}
		return [2]bool{true, true}
	}
	if fds[2].Revents != 0 {
		_, _ = unix.Read(int(fds[2].Fd), make([]byte, 8))
	}
	for i := range ready {
		if fds[i].Revents&(unix.POLLERR|unix.POLLNVAL) != 0 && fds[i].Revents&unix.POLLIN == 0 {
			time.Sleep(time.Millisecond) // an interface that is not up reports an error until it is
		}
		ready[i] = fds[i].Revents&unix.POLLIN != 0
	}
	return ready
}
