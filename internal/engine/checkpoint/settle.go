package checkpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// A dump has the sockets that processes have. What the kernel has beside them it loses: connections
// whose handshake is half way or that nobody has accepted yet, answers that a process has left to
// the kernel when it closed, datagrams that are not read. To the target's kernel the packets of
// such connections belong to nothing, and it answers them by a reset. So all of it has to come to
// its end before: in Settle what takes round trips, while the container runs and nothing but new
// connections is held, and in Freeze what takes moments.
const (
	// settlePatience has room for a round trip, and for what was lost once: the kernel repeats it
	// after a second.
	settlePatience = 2 * time.Second
	// takePatience is how long a server has to accept connections and to read datagrams while all
	// its packets are held. It still runs meanwhile; one that is so busy that it takes longer loses
	// them.
	takePatience = 250 * time.Millisecond
	// readingPatience is how long threads that read clocks may keep the container from being frozen
	// while all its packets are held.
	readingPatience = time.Second
	// withinPatience is how long, after it was in the way of a freeze, what is under way within the
	// container has to come to its end while only new connections wait: what takes it may itself
	// wait for somebody outside. No freeze waits for it after that.
	withinPatience = 1500 * time.Millisecond
	// frozenPatience is how long the kernel may take to deliver what it can without the processes.
	frozenPatience = 5 * time.Millisecond
	// Looks are so far apart at most.
	settleLook = 5 * time.Millisecond
	// unsettledTimes is how often Freeze wants Settle again: a server that closes connections all
	// the time may have one on its way out at any moment.
	unsettledTimes = 3
	// sandboxTimes is how often Freeze wants Settle again because of a process in a sandbox.
	sandboxTimes = 2
)

// Settle waits until no connection is on its way in or out, and no process is in a sandbox that
// keeps CRIU out: sshd authenticates clients in one, which needs their packets. If one does not leave it, the
// freeze names the process. Two looks in a row have to say so: a packet that was let through last may still
// be on its way within the kernel.
// Within a busy container there is always one on its way; for that Freeze waits.
func (d *Departure) Settle(ctx context.Context) error {
	end, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	var found kernel.TCPUnderWay
	began := time.Now()
	settled := 0
	for pause := time.Millisecond; end.Err() == nil; pause = min(pause*3/2, settleLook) {
		var err error
		if found, err = d.tcp.UnderWay(); err != nil {
			return fmt.Errorf("look at the connections of container %s: %w", d.leaving.Name, err)
		}
		found.Within = d.inTheWay(began)
		if settled++; found != (kernel.TCPUnderWay{}) {
			settled = 0
		}
		if settled >= 2 && !d.sandboxed() {
			d.settled = true
			return nil
		}
		time.Sleep(pause)
	}
	d.settled, d.stuck = settled >= 2, found.Unaccepted > 0
	return ctx.Err()
}

// sandboxed tells whether a process lacks a descriptor that CRIU needs. A group that is gone is
// noticed by the freeze.
func (d *Departure) sandboxed() bool {
	lacks, err := d.group.LacksDescriptors()
	return err == nil && lacks
}

// inTheWay counts the connections within the container that were in the way of a freeze before
// Settle began, and gives them up when they have had their time.
func (d *Departure) inTheWay(began time.Time) int {
	if d.refused > 0 && time.Since(began) > withinPatience {
		d.givenUp = began
	}
	if d.refused == 0 || d.givenUp.Equal(began) {
		return 0
	}
	return d.tcp.WithinSince(began) - d.tcp.WithinSince(d.givenUp)
}

// freezeTaken freezes the container at a moment at which nothing waits for it that a dump would
// lose, if there is one soon.
func (d *Departure) freezeTaken(ctx context.Context) (time.Time, error) {
	end, cancel := context.WithTimeout(ctx, takePatience)
	defer cancel()
	for {
		for end.Err() == nil && (d.untaken() || d.underWay().Within > 0) {
			time.Sleep(time.Millisecond)
		}
		if d.sandboxes < sandboxTimes && d.sandboxed() {
			d.sandboxes++ // its packets are held, and it waits for them
			return time.Time{}, engine.ErrUnsettled
		}
		at, err := d.freezeSoon(ctx)
		if err != nil {
			return at, err
		}
		// What has come between the looks and the freeze stays now.
		found := d.delivered()
		over := end.Err() != nil
		unsettled := d.unsettled(found, over)
		if !unsettled && (over || found.Within == 0 && !d.untaken()) {
			return at, nil
		}
		if err := d.group.Thaw(); err != nil {
			return at, err
		}
		if unsettled {
			return at, engine.ErrUnsettled
		}
	}
}

// freezeSoon freezes the container, or has its packets go on for a while if that takes long.
func (d *Departure) freezeSoon(ctx context.Context) (time.Time, error) {
	if d.refused >= unsettledTimes {
		return d.group.FreezeToMove(ctx)
	}
	soon, cancel := context.WithTimeout(ctx, readingPatience)
	defer cancel()
	at, err := d.group.FreezeToMove(soon)
	if err != nil && soon.Err() != nil && ctx.Err() == nil {
		d.refused++
		return at, engine.ErrUnsettled
	}
	return at, err
}

// underWay looks at what is under way and was not given up. A process that has ended is noticed by
// the freeze.
func (d *Departure) underWay() kernel.TCPUnderWay {
	found, err := d.tcp.UnderWay()
	if err != nil {
		return kernel.TCPUnderWay{}
	}
	found.Within -= d.tcp.WithinSince(d.givenUp)
	return found
}

// delivered looks at what is under way in a container that has just been frozen, when the kernel
// has done what it can.
func (d *Departure) delivered() kernel.TCPUnderWay {
	found := d.underWay()
	for until := time.Now().Add(frozenPatience); found.Within > 0 &&
		time.Now().Before(until); found = d.underWay() {
		time.Sleep(time.Millisecond / 2)
	}
	return found
}

// unsettled tells whether there is again, now that the container is frozen, what Settle has waited
// for, or, when patience is over, what waits within the container for a process that waits for
// somebody outside. If Settle has waited in vain, waiting again is of no use.
func (d *Departure) unsettled(found kernel.TCPUnderWay, over bool) bool {
	if !d.settled || d.refused >= unsettledTimes {
		return false
	}
	if found.HalfOpen == 0 && found.Undelivered == 0 && (found.Within == 0 || !over) {
		return false
	}
	d.refused++
	return true
}

// untaken tells whether something waits that the container would take if it had time. A process
// that has ended is noticed by the freeze.
func (d *Departure) untaken() bool {
	unread, err := kernel.UnreadDatagrams(d.first.PID)
	if err != nil || unread > 0 {
		return err == nil
	}
	if d.stuck {
		return false // it had its time
	}
	unaccepted, err := d.tcp.Unaccepted()
	return err == nil && unaccepted > 0
}
