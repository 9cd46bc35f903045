package fetch

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/files/parts"
	"github.com/godwit/godwit/internal/guard"
)

// Parts is a layer elsewhere, of which some parts are wanted. Its methods are called in this order, once.
type Parts interface {
	// List returns all parts of the layer's archive, encoded by parts.Append.
	List() (io.Reader, error)
	// Want requests parts, one after the other.
	Want(runs []parts.Run) (io.Reader, error)
	// Close ends it, also while another goroutine reads.
	Close() error
}

// Finding out which parts of a layer are here takes a reading of the whole layer, there and here. That is
// worthwhile if the transfer of the layer would take longer than worthTime, and less than worthShare of it
// is missing.
const (
	worthTime  = time.Second
	worthShare = 0.5
)

// LeastRead is how many bytes of an archive a holder examines per second, at least. It is silent while it
// has nothing to send.
const LeastRead = 50e6

// bestPartly returns the fastest holder that can send parts of a layer whose other parts may be here; nil:
// the layer should come as a whole. The caller has locked mu.
func (f *Fetch) bestPartly(diffID string) (best *tally) {
	if len(f.similar[diffID]) == 0 {
		return nil
	}
	for _, t := range f.tallies {
		bytes, has := t.Layers[diffID]
		quick := float64(bytes)*8 < t.speed*worthTime.Seconds()
		if !has || t.failed || t.OpenParts == nil || quick && !f.begun[diffID] {
			continue
		}
		if best == nil || t.speed > best.speed {
			best = t
		}
	}
	return best
}

// takePartly brings a layer by sending only its missing parts. If that does not work, or would help little,
// the layer comes as a whole; only a silent holder is blamed. An error means that this node can take no
// more.
func (f *Fetch) takePartly(ctx context.Context, from *tally, diffID string) error {
	f.mu.Lock()
	similar := f.similar[diffID]
	delete(f.similar, diffID) // only one attempt
	f.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := f.config.Patience + time.Duration(float64(f.most[diffID])/LeastRead*float64(time.Second))
	watch := &watch{patience: patience, silent: func() { cancel(errSilent) }}
	late := time.AfterFunc(patience+f.slowly(from, f.most[diffID]), func() { cancel(errSlow) })
	defer late.Stop()
	var there Parts
	err := watch.wait(func() (err error) {
		there, err = from.OpenParts(ctx, diffID)
		return err
	})
	if errors.Is(context.Cause(ctx), errSlow) {
		return nil
	}
	if err != nil {
		return f.fail(ctx, from, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = there.Close() })
	defer stop()
	defer there.Close()
	p := &partly{fetch: f, from: from, watch: watch, there: there, diffID: diffID, similar: similar,
		most: f.most[diffID]}
	err = p.bring(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errSlow) {
		return nil
	} else if cause != nil {
		return f.fail(ctx, from, cause)
	}
	return err
}

// slowly returns how long bytes may take to come from a holder at most: a holder that constantly sends a
// little is not silent.
func (f *Fetch) slowly(from *tally, bytes int64) time.Duration {
	const least = 1e6 // bits per second, of an unknown holder
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(slowRatio * float64(bytes) * 8 / max(from.speed, least) * float64(time.Second))
}

// partly is a layer that is brought by its parts.
type partly struct {
	fetch   *Fetch
	from    *tally
	watch   *watch
	there   Parts
	diffID  string
	similar []string
	most    int64
}

func (p *partly) bring(ctx context.Context) error {
	plan, err := p.plan(ctx)
	share := worthShare
	if p.fetch.begun[p.diffID] {
		share = 1 // all of it has been examined, so parts that are here need not come
	}
	if err != nil || float64(plan.MissingBytes) > share*float64(p.most) {
		return nil
	}
	others, done, err := p.open(plan)
	if err != nil {
		return nil
	}
	defer done()
	var missing io.Reader
	err = p.watch.wait(func() (err error) {
		missing, err = p.there.Want(plan.Missing)
		return err
	})
	if err != nil {
		return nil
	}
	whole := &noted{in: plan.Assemble(p.reader(missing), others)}
	err = p.fetch.config.Store.BringLayer(ctx, p.diffID, whole, p.most)
	if whole.failed != nil || errors.Is(err, image.ErrInvalid) {
		return nil
	}
	if err == nil {
		p.fetch.mu.Lock()
		defer p.fetch.mu.Unlock()
		p.from.taken.Layers++
		p.from.taken.Partly++
	}
	return err
}

// plan finds out which parts are here. Both nodes look at the same time.
func (p *partly) plan(ctx context.Context) (parts.Plan, error) {
	var wanted []parts.Part
	listed := guard.Go(func() error {
		var encoded io.Reader
		err := p.watch.wait(func() (err error) {
			encoded, err = p.there.List()
			return err
		})
		if err == nil {
			wanted, err = parts.Read(p.reader(encoded), p.most)
		}
		return err
	})
	here := make([][]parts.Part, len(p.similar))
	for i, diffID := range p.similar {
		err := p.fetch.config.Store.Parts(ctx, diffID, func(more []parts.Part) error {
			here[i] = append(here[i], more...)
			return nil
		})
		if err != nil {
			here[i] = nil // it is useless
		}
	}
	if err := <-listed; err != nil {
		return parts.Plan{}, err
	}
	return parts.Match(wanted, here), nil
}

// open opens the local archives of which something is used.
func (p *partly) open(plan parts.Plan) (others []io.Reader, done func(), err error) {
	var opened []io.Closer
	done = func() {
		for _, one := range opened {
			_ = one.Close() // It was only read.
		}
	}
	for i, diffID := range p.similar {
		if !plan.Uses(i) {
			others = append(others, nil)
			continue
		}
		archive, err := p.fetch.config.Store.OpenArchive(diffID)
		if err != nil {
			done()
			return nil, nil, err
		}
		opened, others = append(opened, archive), append(others, archive)
	}
	return others, done, nil
}

// reader reads from the holder.
func (p *partly) reader(in io.Reader) io.Reader {
	return &reader{in: in, watch: p.watch, seen: func(bytes int64, waited time.Duration) error {
		p.fetch.count(p.from, bytes, waited)
		return nil
	}}
}

// noted records errors of a reader, except the end.
type noted struct {
	in     io.Reader
	failed error
}

func (n *noted) Read(p []byte) (int, error) {
	count, err := n.in.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		n.failed = err
	}
	return count, err
}
