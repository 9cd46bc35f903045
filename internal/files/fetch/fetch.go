// Package fetch brings image layers to a node from the nearest source: other nodes, the registry from which
// an image came, or the node that needs the image moved.
//
// Nobody is trusted: content is a layer if its digest says so, and it has no more bytes than the layer. A
// holder that is silent, too slow, or sends something else is not used any more, and the next one is. The
// package knows no container, no migration and no connection: a Holder says how to reach it.
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

// Layer is a wanted layer.
type Layer struct {
	DiffID  string
	Archive int64 // uncompressed size of its archive; 0: unknown
	// Similar are layers in the store that may have much in common with it: then only the missing parts may
	// have to come.
	Similar []string
	// Begun means that one of them is the earlier received part of this layer, which need not come again,
	// however much is missing.
	Begun bool
}

// Store is the destination of layers.
type Store interface {
	// Claim reserves a layer for the caller to bring, until it is released. Not ok: it is here, or somebody
	// else brings it.
	Claim(diffID string) (release func(), ok bool)
	HasLayer(diffID string) bool
	// Await waits until nobody else brings a layer, and reports whether it is here.
	Await(ctx context.Context, diffID string) (bool, error)
	// BringLayer adds a claimed layer from an archive of at most this many bytes. Error: image.ErrInvalid
	// for anything that is not the layer.
	BringLayer(ctx context.Context, diffID string, r io.Reader, most int64) error
	// Parts emits the parts of a layer, and OpenArchive opens the layer: one of Layer.Similar.
	Parts(ctx context.Context, name string, emit func([]parts.Part) error) error
	OpenArchive(name string) (io.ReadCloser, error)
}

// Delivery is a sequence of arriving layers, in the order of the request.
type Delivery interface {
	// Next returns the next layer, which must be read to its end; io.EOF when all have come.
	Next() (diffID string, content io.Reader, err error)
	// Close ends it, also while another goroutine is in Next or reads.
	Close() error
}

// Holder is a place that has layers.
type Holder struct {
	Kind  string  // what it is, for reports
	Name  string  // which one
	Speed float64 // expected bits per second
	// Layers are its layers, with the bytes that it sends for each.
	Layers map[string]int64
	// Open makes it deliver layers that it has.
	Open func(ctx context.Context, diffIDs []string) (Delivery, error)
	// OpenParts opens one of its layers, to get only parts of it. Nil: it sends whole layers.
	OpenParts func(ctx context.Context, diffID string) (Parts, error)
}

// Taken describes what came from a holder.
type Taken struct {
	Kind, Name string
	Layers     int
	Partly     int           // layers of which only missing parts came
	Bytes      int64         // received, including useless ones
	Waited     time.Duration // for bytes
	Failed     error         // why it was not used any more; nil: no error
}

// Speed returns the bits received per second of waiting.
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

// Fetch brings layers that a store lacks.
type Fetch struct {
	config Config
	layers []string         // DiffIDs, each once
	most   map[string]int64 // bytes of their archives
	broken error            // why this node can take no more; nil: nothing

	mu      sync.Mutex
	tallies []*tally            // one for each holder
	similar map[string][]string // by missing layer: similar layers that are here
	begun   map[string]bool     // layers with an earlier received part
}

// tally is what is known about a holder so far. Fetch.mu guards its fields.
type tally struct {
	*Holder
	taken  Taken
	speed  float64 // as it is expected now
	failed bool    // not used any more
	slow   bool    // given up once for a faster one
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

// Taken returns what has come so far, from holders that have sent something or failed.
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

// Run brings what is missing, and returns when everything can be used.
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

// claim divides the missing layers into those that this fetch brings, and those that somebody else on this
// node is bringing.
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

// bring requests each claimed layer from its best holder, from all holders at once. Layers may be missing
// after it; but then a holder has failed, or a request for parts was useless.
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

// share is a holder's share of the layers.
type share struct{ partly, whole []string }

// takeShare takes a share; only failures of this node are errors.
func (f *Fetch) takeShare(ctx context.Context, from *tally, share share) error {
	for _, diffID := range share.partly {
		if err := f.takePartly(ctx, from, diffID); err != nil {
			return err
		}
		if f.gaveUp(from) {
			return nil // others get the rest
		}
	}
	if len(share.whole) == 0 {
		return nil
	}
	return f.take(ctx, from, share.whole)
}

// gaveUp reports whether a holder is not used any more.
func (f *Fetch) gaveUp(from *tally) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return from.failed
}

// assign assigns each layer to the holder that is expected to be the fastest.
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

// best returns the fastest holder of a layer, except an excluded one. The caller has locked mu.
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

// nobody explains why a layer cannot be had.
func (f *Fetch) nobody(diffID string) error {
	failed := []error{fmt.Errorf("no source can send layer %s", diffID)}
	for _, t := range f.tallies {
		if t.taken.Failed != nil {
			failed = append(failed, fmt.Errorf("%s %s: %w", t.Kind, t.Name, t.taken.Failed))
		}
	}
	return errors.Join(failed...)
}
