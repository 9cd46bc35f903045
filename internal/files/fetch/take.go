package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/godwit/godwit/internal/files/image"
)

// A holder is given up for a faster one when it has been waited for this long in total, and the other is
// expected to be this many times as fast. The unfinished layer starts again.
const (
	slowAfter = 3 * time.Second
	slowRatio = 3
)

var (
	errSilent = errors.New("it sent nothing")
	errSlow   = errors.New("it is much slower than expected, and another source is not")
	errOther  = errors.New("it sends something that it was not asked for")
)

// take brings layers from one holder. An error means that this node can take no more; errors of the holder
// are recorded.
func (f *Fetch) take(ctx context.Context, from *tally, diffIDs []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := &watch{patience: f.config.Patience, silent: func() { cancel(errSilent) }}
	var delivery Delivery
	err := watch.wait(func() (err error) {
		delivery, err = from.Open(ctx, diffIDs)
		return err
	})
	if err != nil {
		return f.fail(ctx, from, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = delivery.Close() }) // ends all waits
	defer stop()
	defer delivery.Close()
	for _, diffID := range diffIDs {
		var name string
		var content io.Reader
		err := watch.wait(func() (err error) {
			name, content, err = delivery.Next()
			return err
		})
		if err == nil && name != diffID {
			err = fmt.Errorf("%w: %.100q instead of layer %s", errOther, name, diffID)
		}
		if err != nil {
			return f.fail(ctx, from, err)
		}
		reader := &reader{in: content, watch: watch, seen: func(bytes int64, waited time.Duration) error {
			return f.seen(from, diffID, bytes, waited)
		}}
		if err := f.config.Store.BringLayer(ctx, diffID, reader, f.most[diffID]); err != nil {
			return f.blame(ctx, from, reader.failed, err)
		}
		f.mu.Lock()
		from.taken.Layers++
		f.mu.Unlock()
	}
	return f.end(ctx, from, delivery, watch)
}

// end checks that a holder has sent everything that was requested, and nothing else.
func (f *Fetch) end(ctx context.Context, from *tally, delivery Delivery, watch *watch) error {
	err := watch.wait(func() error {
		name, _, err := delivery.Next()
		if err == nil {
			err = fmt.Errorf("%w: %.100q behind the last layer", errOther, name)
		}
		return err
	})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return f.fail(ctx, from, err)
}

// blame finds out whether the holder or this node is the reason that a layer could not be made.
func (f *Fetch) blame(ctx context.Context, from *tally, reading, err error) error {
	switch {
	case reading != nil:
		return f.fail(ctx, from, reading)
	case errors.Is(err, image.ErrInvalid) || ctx.Err() != nil:
		return f.fail(ctx, from, err)
	}
	return err
}

// fail records that a holder is not used any more, or not as the first.
func (f *Fetch) fail(ctx context.Context, from *tally, err error) error {
	cause := context.Cause(ctx)
	if cause != nil && !errors.Is(cause, errSilent) {
		return cause // the holder is not to blame
	}
	if errors.Is(cause, errSilent) {
		err = fmt.Errorf("%w for %s", cause, f.config.Patience)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(err, errSlow) {
		from.slow, from.speed = true, from.taken.Speed()
		return nil
	}
	from.failed, from.taken.Failed = true, err
	return nil
}

// seen counts bytes from a holder, and gives the holder up if another would be much faster.
func (f *Fetch) seen(from *tally, diffID string, bytes int64, waited time.Duration) error {
	f.count(from, bytes, waited)
	f.mu.Lock()
	defer f.mu.Unlock()
	if from.slow || from.taken.Waited < slowAfter {
		return nil
	}
	if other := f.best(diffID, from); other != nil && other.speed > slowRatio*from.taken.Speed() {
		return fmt.Errorf("%w: %.1f Mbit/s, and %.1f are expected of %s", errSlow, from.taken.Speed()/1e6,
			other.speed/1e6, other.Name)
	}
	return nil
}

func (f *Fetch) count(from *tally, bytes int64, waited time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from.taken.Bytes += bytes
	from.taken.Waited += waited
}

// watch bounds how long a holder may be silent.
type watch struct {
	patience time.Duration
	silent   func()
}

// wait does something that waits for the holder.
func (w *watch) wait(do func() error) error {
	timer := time.AfterFunc(w.patience, w.silent)
	defer timer.Stop()
	return do()
}

// reader is an arriving layer. Only the time spent waiting for it counts, because this node may be busy in
// between.
type reader struct {
	in     io.Reader
	watch  *watch
	seen   func(bytes int64, waited time.Duration) error
	failed error // other than the end
}

func (r *reader) Read(p []byte) (n int, err error) {
	began := time.Now()
	err = r.watch.wait(func() (err error) {
		n, err = r.in.Read(p)
		return err
	})
	if slow := r.seen(int64(n), time.Since(began)); slow != nil && err == nil {
		err = slow
	}
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed = err
	}
	return n, err
}
