package checkpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// A dump contains the sockets of processes. It loses what the kernel has besides them: connections that are
// in their handshake or not accepted yet, data that a process has left to the kernel by closing, and unread
// datagrams. The target's kernel knows no sockets for packets of such connections, and answers them with a
// reset. So all of this has to end before the dump: what takes round trips in Settle, while the container
// runs and only new connections are held, and what takes moments in Freeze.
const (
	// settlePatience is enough for a round trip, and for a packet that was lost once: the kernel
	// retransmits it after a second.
	settlePatience = 2 * time.Second
	// deliverPatience is how long peers may take for data that a process has left to the kernel, if they
	// acknowledge some of the data within each settlePatience. A server that closes a connection after its
	// answer leaves megabytes to the kernel, which a slow link or peer does not take in settlePatience. New
	// connections wait meanwhile.
	deliverPatience = 10 * time.Second
	// takePatience is how long a server has to accept connections and to read datagrams while all its
	// packets are held. The server still runs meanwhile. A server that is so busy that it takes longer
	// loses them.
	takePatience = 250 * time.Millisecond
	// readingPatience is how long threads that read clocks may delay the freeze while all of the
	// container's packets are held.
	readingPatience = time.Second
	// withinPatience is how long a connection within the container has to settle after it was in the way of
	// a freeze, while only new connections wait. The process that must act may itself wait for somebody
	// outside. After that, no freeze waits for the connection.
	withinPatience = 1500 * time.Millisecond
	// frozenPatience is how long the kernel may take to deliver what it can deliver without the processes.
	frozenPatience = 5 * time.Millisecond
	// settleLook is the maximum time between two checks.
	settleLook = 5 * time.Millisecond
	// unsettledTimes is how often Freeze requests another Settle. A server that closes connections all the
	// time may be closing one at any moment.
	unsettledTimes = 3
	// sandboxTimes is how often Freeze requests another Settle because of a process in a sandbox.
	sandboxTimes = 2
)

// Settle waits until no TCP handshake or close is in flight, and no process is in a sandbox that keeps CRIU
// out: sshd authenticates clients in one, which needs their packets. If a process does not leave its sandbox,
// the freeze names the process. Two checks in a row have to agree, because the last packet that was let
// through may still be on its way within the kernel. Connections within a busy container are never all
// quiet; Freeze waits for those.
func (d *Departure) Settle(ctx context.Context) error {
	var found kernel.TCPUnderWay
	began := time.Now()
	limit := newSettleLimit(began)
	settled := 0
	for pause := time.Millisecond; ctx.Err() == nil &&
		!limit.reached(time.Now(), found.UndeliveredBytes); pause = min(pause*3/2, settleLook) {
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

// settleLimit decides when Settle gives up.
type settleLimit struct {
	at, last    time.Time
	undelivered int // in bytes, at the last check
}

func newSettleLimit(began time.Time) settleLimit {
	return settleLimit{at: began.Add(settlePatience), last: began.Add(deliverPatience)}
}

// reached reports whether Settle has to give up. Peers that have acknowledged data since the last check
// prolong the wait.
func (l *settleLimit) reached(now time.Time, undelivered int) bool {
	if undelivered < l.undelivered {
		l.at = now.Add(settlePatience)
	}
	l.undelivered = undelivered
	return !now.Before(l.at) || !now.Before(l.last)
}

// sandboxed reports whether a process lacks a descriptor that CRIU needs. The freeze notices a group that
// is gone.
func (d *Departure) sandboxed() bool {
	lacks, err := d.group.LacksDescriptors()
	return err == nil && lacks
}

// inTheWay counts the connections within the container that were in the way of a freeze before Settle
// began. It gives them up after withinPatience.
func (d *Departure) inTheWay(began time.Time) int {
	if d.refused > 0 && time.Since(began) > withinPatience {
		d.givenUp = began
	}
	if d.refused == 0 || d.givenUp.Equal(began) {
		return 0
	}
	return d.tcp.WithinSince(began) - d.tcp.WithinSince(d.givenUp)
}

// freezeTaken freezes the container at a moment, if there is one soon, at which it has taken everything
// that a dump would lose.
func (d *Departure) freezeTaken(ctx context.Context) (time.Time, error) {
	end, cancel := context.WithTimeout(ctx, takePatience)
	defer cancel()
	for {
		for end.Err() == nil && (d.untaken() || d.underWay().Within > 0) {
			time.Sleep(time.Millisecond)
		}
		if d.sandboxes < sandboxTimes && d.sandboxed() {
			d.sandboxes++ // its packets are held, and the sandboxed process waits for them
			return time.Time{}, engine.ErrUnsettled
		}
		at, err := d.freezeSoon(ctx)
		if err != nil {
			return at, err
		}
		// What has come between the checks and the freeze stays now.
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

// freezeSoon freezes the container. If that takes long, it lets the container's packets through for a
// while.
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

// underWay returns what is in flight and was not given up. The freeze notices a process that has ended.
func (d *Departure) underWay() kernel.TCPUnderWay {
	found, err := d.tcp.UnderWay()
	if err != nil {
		return kernel.TCPUnderWay{}
	}
	found.Within -= d.tcp.WithinSince(d.givenUp)
	return found
}

// delivered returns what is in flight in a container that has just been frozen, after the kernel has done
// what it can.
func (d *Departure) delivered() kernel.TCPUnderWay {
	found := d.underWay()
	for until := time.Now().Add(frozenPatience); found.Within > 0 &&
		time.Now().Before(until); found = d.underWay() {
		time.Sleep(time.Millisecond / 2)
	}
	return found
}

// unsettled reports whether the frozen container again has something that Settle has waited for. When
// patience is over, something within the container that waits for a process, which itself waits for
// somebody outside, counts, too. If Settle has waited in vain, waiting again is useless.
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

// untaken reports whether something waits that the container would take if it had time. The freeze notices
// a process that has ended.
func (d *Departure) untaken() bool {
	unread, err := kernel.UnreadDatagrams(d.first.PID)
	if err != nil || unread > 0 {
		return err == nil
	}
	if d.stuck {
		return false // the container had time for it
	}
	unaccepted, err := d.tcp.Unaccepted()
	return err == nil && unaccepted > 0
}
