package embedded

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// A dump has the sockets that processes have. What the kernel has beside them it loses: connections whose handshake is half
// way or that nobody has accepted yet, answers that a process has left to the kernel when it closed, datagrams that are not
// read. To the target's kernel the packets of such connections belong to nothing, and it answers them by a reset. So all of it
// has to come to its end before: in Settle what takes round trips, while the container runs and nothing but new connections
// is held, and in Freeze what takes moments.
const (
	// settlePatience has room for a round trip, and for what was lost once: the kernel repeats it after a second.
	settlePatience = 2 * time.Second
	// takePatience is how long a server has to accept connections and to read datagrams while all its packets are held. It
	// still runs meanwhile; one that is so busy that it takes longer loses them.
	takePatience = 250 * time.Millisecond
	// Looks are so far apart at most.
	settleLook = 5 * time.Millisecond
	// unsettledTimes is how often Freeze wants Settle again: a server that closes connections all the time may have one on
	// its way out at any moment.
	unsettledTimes = 3
)

// Settle waits until no connection is on its way in or out. Two looks in a row have to say so: a packet that was let through
// last may still be on its way within the kernel.
func (d *departure) Settle(ctx context.Context) error {
	end, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	var found kernel.TCPUnderWay
	for settled, pause := 0, time.Millisecond; end.Err() == nil; pause = min(pause*3/2, settleLook) {
		var err error
		if found, err = d.tcp.UnderWay(); err != nil {
			return fmt.Errorf("look at the connections of container %s: %w", d.name, err)
		}
		if settled++; found != (kernel.TCPUnderWay{}) {
			settled = 0
		}
		if settled == 2 {
			d.settled = true
			return nil
		}
		time.Sleep(pause)
	}
	d.settled, d.stuck = false, found.Unaccepted > 0
	return ctx.Err()
}

// freezeTaken freezes the container at a moment at which nothing waits for it that a dump would lose, if there is one soon.
func (d *departure) freezeTaken(ctx context.Context) (time.Time, error) {
	end, cancel := context.WithTimeout(ctx, takePatience)
	defer cancel()
	for {
		for d.untaken() && end.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		at, err := d.group.FreezeToMove(ctx)
		if err != nil {
			return at, err
		}
		// What has come between the looks and the freeze stays now.
		unsettled, again := d.unsettled(), end.Err() == nil && d.untaken()
		if !unsettled && !again {
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

// unsettled tells whether there is again, now that the container is frozen, what Settle has waited for. If it has waited in
// vain, waiting again is of no use.
func (d *departure) unsettled() bool {
	if !d.settled || d.refused >= unsettledTimes {
		return false
	}
	found, err := d.tcp.UnderWay()
	if err != nil || found.HalfOpen == 0 && found.Undelivered == 0 {
		return false
	}
	d.refused++
	return true
}

// untaken tells whether something waits that the container would take if it had time. A process that has ended is noticed
// by the freeze.
func (d *departure) untaken() bool {
	unread, err := kernel.UnreadDatagrams(d.init.PID)
	if err != nil || unread > 0 {
		return err == nil
	}
	if d.stuck {
		return false // it had its time
	}
	unaccepted, err := d.tcp.Unaccepted()
	return err == nil && unaccepted > 0
}
