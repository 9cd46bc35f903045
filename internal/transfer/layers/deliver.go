package layers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Delivery is an image on its way to the target of a migration, beside all else that comes before the
// freeze. Nothing at the target needs its layers before the restore. A nil Delivery has nothing to bring.
type Delivery struct {
	transfer *Transfer
	cancel   context.CancelFunc
	note     func(what string)
	log      *slog.Logger
	done     chan struct{} // closed when the layers are there, or cannot be brought
	err      error         // why not, when done
}

// Order is what is delivered, and who hears of it.
type Order struct {
	Bringing
	Before func(ctx context.Context) error // is called first, and can fail
	Note   func(what string)               // is told what is worth a line in the report
}

// Deliver begins to have a node fetch what it lacks of an image, and does not wait for that. It ends with
// ctx at the latest.
func (m *Mover) Deliver(ctx context.Context, order Order) *Delivery {
	ctx, cancel := context.WithCancel(ctx)
	d := &Delivery{transfer: order.Transfer, cancel: cancel, note: order.Note, log: m.log,
		done: make(chan struct{})}
	go guard.Logged(m.log, func() {
		defer close(d.done)
		err := guard.Do(func() error {
			if err := order.Before(ctx); err != nil {
				return err
			}
			brought, err := m.Bring(ctx, order.Bringing)
			order.Progress(brought)
			return err
		})
		if err != nil {
			d.err = fmt.Errorf("bring the image: %w", err)
		}
	})()
	return d
}

// StoredBytes is how much there is of the layers that are missing elsewhere, as they are sent. Of layers
// that are not here nobody need find out how large they are.
func (m *Mover) StoredBytes(layers, missing []string) (bytes int64) {
	lacked := slices.DeleteFunc(slices.Clone(layers),
		func(diffID string) bool { return !slices.Contains(missing, diffID) })
	for _, layer := range m.Here(lacked) {
		bytes += layer.StoredBytes
	}
	return bytes
}

// Cancel gives up what is still on its way. What has come stays at the target: it is whole.
func (d *Delivery) Cancel() {
	if d != nil {
		d.cancel()
	}
}

// Left is what has left for the image so far. Not sending: the target had all.
func (d *Delivery) Left() (sent stream.Counters, sending bool) {
	if d == nil {
		return stream.Counters{}, false
	}
	return d.transfer.Left(), true
}

// UnderWay reports whether layers are still on their way.
func (d *Delivery) UnderWay() bool {
	if d == nil {
		return false
	}
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// waitWorthTelling is how long a wait is of which the user is told.
const waitWorthTelling = 100 * time.Millisecond

// Await waits until the target has all of the image.
func (d *Delivery) Await(ctx context.Context) error {
	if d == nil {
		return nil
	}
	began := time.Now()
	if err := d.wait(ctx); err != nil {
		return err
	}
	if waited := time.Since(began); waited > waitWorthTelling {
		d.note(fmt.Sprintf("waited %s for layers of the image, after all other preparations were done",
			waited.Round(waitWorthTelling)))
	}
	return d.err
}

// wait waits for the end of the delivery.
func (d *Delivery) wait(ctx context.Context) error {
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Beside does what can be done while layers come, and gives it up if they cannot be brought. interrupt ends
// what waits for the target, or for the link.
func (d *Delivery) Beside(ctx context.Context, interrupt func(why error),
	do func(context.Context) error) error {
	if d == nil {
		return do(ctx)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go guard.Logged(d.log, func() {
		if d.wait(ctx) == nil && d.err != nil {
			giveUp(d.err)
		}
	})()
	defer context.AfterFunc(ctx, func() { interrupt(context.Cause(ctx)) })()
	err := do(ctx)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// Pace says when the next of some rounds is due.
type Pace interface {
	Did(began, ended time.Time)
	Next() time.Time
}

// Meanwhile does rounds, one after the other, again and again while layers come. It decides nothing: what it
// sees of the link, it shares with the layers. Afterwards less is left for the rounds that count.
func (d *Delivery) Meanwhile(ctx context.Context, pace Pace, rounds ...func(context.Context) error) error {
	for d.UnderWay() {
		began := time.Now()
		for i, round := range rounds {
			if i > 0 && !d.UnderWay() {
				break
			}
			if err := round(ctx); err != nil {
				return err
			}
		}
		pace.Did(began, time.Now())
		if err := d.awaitTurn(ctx, pace); err != nil {
			return err
		}
	}
	return nil
}

// awaitTurn waits until the next round beside layers is due, or they are there.
func (d *Delivery) awaitTurn(ctx context.Context, pace Pace) error {
	due := time.NewTimer(time.Until(pace.Next()))
	defer due.Stop()
	select {
	case <-due.C:
		return nil
	case <-d.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
