// Package fetch brings image layers to a node from wherever they are nearest: other nodes, the
// registry that an image came from, the node that has a use for the image.
//
// Nobody is trusted: what comes is a layer if its digest says so, and has no more bytes than the
// layer has. Who is silent, too slow, or sends something else is asked no more, and the next one
// is. The package knows no container, no migration and no connection: a Holder says how to get at
// it.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/files/parts"
	"github.com/godwit/godwit/internal/guard"
)

// Layer is a layer that is wanted.
type Layer struct {
	DiffID  string
	Archive int64 // bytes of its archive when it is not compressed; 0: not known
	// Similar are layers in the store that may have much in common with it: then only what they
	// lack may have to come.
	Similar []string
	// Begun says that one of them is what has come of it before: however much is missing, that need
	// not come again.
	Begun bool
}

// Store is where layers are brought to.
type Store interface {
	// Claim keeps a layer for the caller to bring, until it is released. Not ok: it is here, or
	// somebody else brings it.
	Claim(diffID string) (release func(), ok bool)
	HasLayer(diffID string) bool
	// Await waits until nobody else brings a layer, and tells whether it is here.
	Await(ctx context.Context, diffID string) (bool, error)
	// BringLayer adds a layer that was claimed, from an archive of at most so many bytes. Error:
	// image.ErrInvalid for what is no such layer.
	BringLayer(ctx context.Context, diffID string, r io.Reader, most int64) error
	// Parts tells of the parts of a layer, and OpenArchive opens it: one of Layer.Similar.
	Parts(ctx context.Context, name string, emit func([]parts.Part) error) error
	OpenArchive(name string) (io.ReadCloser, error)
}

// Delivery are layers on their way, in the order in which they were asked for.
type Delivery interface {
	// Next gives the next one, which is to be read to its end; io.EOF when all have come.
	Next() (diffID string, content io.Reader, err error)
	// Close ends it, also while another goroutine is in Next or reads.
	Close() error
}

// Holder is somewhere that has layers.
type Holder struct {
	Kind  string  // what it is, for reports
	Name  string  // which one
	Speed float64 // bits per second that are expected of it
	// Layers are those that it has, with the bytes that it sends for each.
	Layers map[string]int64
	// Open has it deliver layers that it has.
	Open func(ctx context.Context, diffIDs []string) (Delivery, error)
	// OpenParts opens a layer that it has, to get parts of it only. Nil: it sends whole layers.
	OpenParts func(ctx context.Context, diffID string) (Parts, error)
}

// Taken tells what came from a holder.
type Taken struct {
	Kind, Name string
	Layers     int
	Partly     int           // layers of which only parts came, because the others were there
	Bytes      int64         // that came, also of what was of no use
	Waited     time.Duration // for bytes
	Failed     error         // why no more was asked of it; nil: nothing was wrong
}

// Speed is what came per second while it was waited for, in bits.
func (t Taken) Speed() float64 {
	if t.Waited <= 0 {
		return 0
	}
	return float64(t.Bytes) * 8 / t.Waited.Seconds()
}

// Config of a fetch.
type Config struct {
	Store    Store
	Layers   []Layer
	Holders  []*Holder
	Patience time.Duration // with a holder that sends nothing
}

// Fetch brings layers that are not in a store.
type Fetch struct {
	config Config
	layers []string         // DiffIDs, each once
	most   map[string]int64 // bytes of their archives
	broken error            // why this node can take no more; nil: nothing

	mu      sync.Mutex
	tallies []*tally            // one for each holder
	similar map[string][]string // layers that are here, by those of which therefore parts may be enough
	begun   map[string]bool     // those of which some has come before
}

// tally is what is known of a holder by now. Its fields are guarded by Fetch.mu.
type tally struct {
	*Holder
	taken  Taken
	speed  float64 // as it is expected now
	failed bool    // it is asked no more
	slow   bool    // it was given up once for another one that is faster
}

// New makes a fetch.
func New(config Config) *Fetch {
	f := &Fetch{config: config, most: map[string]int64{}, similar: map[string][]string{},
		begun: map[string]bool{}}
	for _, layer := range config.Layers {
		if _, twice := f.most[layer.DiffID]; !twice {
			f.layers = append(f.layers, layer.DiffID)
		}
		f.most[layer.DiffID] = layer.Archive
		if len(layer.Similar) > 0 && parts.CanCut(layer.Archive) {
			f.similar[layer.DiffID], f.begun[layer.DiffID] = layer.Similar, layer.Begun
		}
	}
	for _, holder := range config.Holders {
		f.tallies = append(f.tallies,
			&tally{Holder: holder, speed: holder.Speed, taken: Taken{Kind: holder.Kind, Name: holder.Name}})
	}
	return f
}

// Taken tells what has come so far, from those holders of which something did, or that failed.
func (f *Fetch) Taken() []Taken {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Taken
	for _, t := range f.tallies {
		if t.taken.Bytes > 0 || t.taken.Failed != nil {
			all = append(all, t.taken)
		}
	}
	return all
}

// Run brings what is missing, and returns when it can be used.
func (f *Fetch) Run(ctx context.Context) error {
	for {
		mine, others := f.claim()
		if len(mine) == 0 && len(others) == 0 {
			return nil
		}
		err := f.bring(ctx, mine)
		if err == nil && len(mine) == 0 {
			_, err = f.config.Store.Await(ctx, others[0])
		}
		if err != nil {
			return err
		}
	}
}

// claim divides what is missing into what this fetch is to bring, and what somebody else on this
// node is just bringing.
func (f *Fetch) claim() (mine map[string]func(), others []string) {
	mine = map[string]func(){}
	for _, diffID := range f.layers {
		if release, ok := f.config.Store.Claim(diffID); ok {
			mine[diffID] = release
		} else if !f.config.Store.HasLayer(diffID) {
			others = append(others, diffID)
		}
	}
	return mine, others
}

// bring asks each holder for those of the claimed layers that it is the best for, all of them at
// the same time. Layers may be missing after it, but then a holder has failed, or it was of no use
// to ask for parts of one.
func (f *Fetch) bring(ctx context.Context, claimed map[string]func()) error {
	if len(claimed) == 0 {
		return nil
	}
	defer func() {
		for _, release := range claimed {
			release()
		}
	}()
	shares, err := f.assign(claimed)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	for holder, share := range shares {
		all.Go(func() {
			if err := guard.Do(func() error { return f.takeShare(ctx, holder, share) }); err != nil {
				mu.Lock()
				defer mu.Unlock()
				f.broken = errors.Join(f.broken, err)
				cancel()
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); f.broken == nil && err != nil {
		return err
	}
	return f.broken
}

// share is what is to come from one holder.
type share struct{ partly, whole []string }

// takeShare takes it, with this node's failures as errors.
func (f *Fetch) takeShare(ctx context.Context, from *tally, share share) error {
	for _, diffID := range share.partly {
		if err := f.takePartly(ctx, from, diffID); err != nil {
			return err
		}
		if f.gaveUp(from) {
			return nil // others are asked for the rest
		}
	}
	if len(share.whole) == 0 {
		return nil
	}
	return f.take(ctx, from, share.whole)
}

// gaveUp tells whether a holder is asked no more.
func (f *Fetch) gaveUp(from *tally) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return from.failed
}

// assign gives each layer to the holder that is expected to be the fastest.
func (f *Fetch) assign(claimed map[string]func()) (map[*tally]share, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	shares := map[*tally]share{}
	for _, diffID := range f.layers {
		if _, ok := claimed[diffID]; !ok {
			continue
		}
		best := f.best(diffID, nil)
		if best == nil {
			return nil, f.nobody(diffID)
		}
		if cutter := f.bestPartly(diffID); cutter != nil {
			one := shares[cutter]
			one.partly = append(one.partly, diffID)
			shares[cutter] = one
			continue
		}
		one := shares[best]
		one.whole = append(one.whole, diffID)
		shares[best] = one
	}
	return shares, nil
}

// best is the fastest holder of a layer beside one that is out of the question. The caller has locked mu.
func (f *Fetch) best(diffID string, except *tally) (best *tally) {
	for _, t := range f.tallies {
		if _, has := t.Layers[diffID]; !has || t.failed || t == except {
			continue
		}
		if best == nil || t.speed > best.speed {
			best = t
		}
	}
	return best
}

// nobody says why a layer cannot be had.
func (f *Fetch) nobody(diffID string) error {
	failed := []error{fmt.Errorf("no source can send layer %s", diffID)}
	for _, t := range f.tallies {
		if t.taken.Failed != nil {
			failed = append(failed, fmt.Errorf("%s %s: %w", t.Kind, t.Name, t.taken.Failed))
		}
	}
	return errors.Join(failed...)
}
