package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/files/parts"
)

// rebuilt makes a world with one layer that resembles an existing one.
func rebuilt(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir(), raw: map[string][]byte{}}
	content := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	before, rawBefore := archive(t, string(content))
	now, raw := archive(t, string(content[:3<<20])+"something else"+string(content[3<<20+100:]))
	w.raw[now.DiffID] = raw
	now.Similar = []string{before.DiffID}
	w.layers = []Layer{now}
	w.open()
	check(t, w.store.ImportLayer(t.Context(), before.DiffID, bytes.NewReader(rawBefore)))
	return w
}

// cutter makes a holder send parts of layers, too. change modifies each list and all parts that it sends.
func (w *world) cutter(h *holder, change func(list, pieces io.Reader) (io.Reader, io.Reader)) *piecemeal {
	one := &piecemeal{world: w, change: change}
	h.Speed = 1e6 // slow enough to be worth it
	h.OpenParts = func(ctx context.Context, diffID string) (Parts, error) {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		return &cutLayer{piecemeal: one, raw: w.raw[diffID], ctx: ctx, cancel: cancel}, nil
	}
	return one
}

type piecemeal struct {
	*world
	change func(list, pieces io.Reader) (io.Reader, io.Reader)

	mu     sync.Mutex
	opened int
	sent   int64
}

type cutLayer struct {
	*piecemeal
	raw    []byte
	list   []parts.Part
	ctx    context.Context
	cancel context.CancelFunc
}

func (c *cutLayer) List() (io.Reader, error) {
	c.mu.Lock()
	c.opened++
	c.mu.Unlock()
	err := parts.Cut(bytes.NewReader(c.raw), int64(len(c.raw)), func(more []parts.Part) error {
		c.list = append(c.list, more...)
		return nil
	})
	list, _ := c.change(bytes.NewReader(parts.Append(nil, c.list)), nil)
	return &stoppable{c.ctx, list}, err
}

func (c *cutLayer) Want(runs []parts.Run) (io.Reader, error) {
	var picked bytes.Buffer
	if err := parts.Pick(bytes.NewReader(c.raw), c.list, runs, &picked); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.sent += int64(picked.Len())
	c.mu.Unlock()
	_, pieces := c.change(nil, &picked)
	return &stoppable{c.ctx, pieces}, nil
}

func (c *cutLayer) Close() error {
	c.cancel()
	return nil
}

func asTheyAre(list, pieces io.Reader) (io.Reader, io.Reader) { return list, pieces }

// TestPartly: of a layer that resembles another one, only the new parts are fetched.
func TestPartly(t *testing.T) {
	w := rebuilt(t)
	h := w.holder("node", 0, w.layers, nil)
	there := w.cutter(h, asTheyAre)
	f, err := w.fetch(long, h)
	check(t, err)
	w.whole()
	taken := f.Taken()
	if len(h.asked) > 0 || there.sent == 0 || there.sent > 1<<20 || len(taken) != 1 || taken[0].Partly != 1 ||
		taken[0].Layers != 1 {
		t.Errorf("%d bytes of parts, whole: %q: %+v", there.sent, h.asked, taken)
	}
	if taken[0].Bytes < there.sent || taken[0].Bytes > there.sent+64<<10 {
		t.Errorf("%d bytes came, %d of them parts", taken[0].Bytes, there.sent)
	}
}

// TestBegun: the received part of a layer is not fetched again, however small it is.
func TestBegun(t *testing.T) {
	w := &world{T: t, dir: t.TempDir(), raw: map[string][]byte{}}
	content := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(content)
	came, rawCame := archive(t, string(content[:2<<20]))
	whole, raw := archive(t, string(content))
	w.raw[whole.DiffID] = raw
	whole.Similar, whole.Begun = []string{came.DiffID}, true
	w.layers = []Layer{whole}
	w.open()
	check(t, w.store.ImportLayer(t.Context(), came.DiffID, bytes.NewReader(rawCame)))
	h := w.holder("a", 1e9, w.layers, nil)
	cutter := w.cutter(h, asTheyAre)
	h.Speed = 1e12 // so fast that nothing else would be worth it
	f, err := w.fetch(time.Minute, h)
	check(t, err)
	w.whole()
	if taken := f.Taken(); len(taken) != 1 || taken[0].Partly != 1 || cutter.sent > 6<<20+1<<19 {
		t.Errorf("%+v, %d bytes of parts", taken, cutter.sent)
	}
}

// TestNotPartly: a layer is fetched as a whole if its parts are useless or wrong, and at once if the
// connection is fast.
func TestNotPartly(t *testing.T) {
	for name, test := range map[string]struct {
		change func(list, pieces io.Reader) (io.Reader, io.Reader)
		set    func(*world, *holder)
		opened int
	}{
		"what is here has nothing in common": {asTheyAre, func(w *world, _ *holder) {
			other, raw := archive(t, "something else"+string(bytes.Repeat([]byte("x"), 8<<20)))
			check(t, w.store.ImportLayer(t.Context(), other.DiffID, bytes.NewReader(raw)))
			w.layers[0].Similar = []string{other.DiffID}
		}, 1},
		"what is here has gone": {asTheyAre,
			func(w *world, _ *holder) { w.layers[0].Similar = []string{w.layers[0].DiffID} }, 1},
		"it is quick":           {asTheyAre, func(_ *world, h *holder) { h.Speed = 1e9 }, 0},
		"its size is not known": {asTheyAre, func(w *world, _ *holder) { w.layers[0].Archive = 0 }, 0},
		"the list makes no sense": {func(_, p io.Reader) (io.Reader,
			io.Reader) {
			return bytes.NewReader(make([]byte, 400)), p
		}, nil, 1},
		"the list ends": {func(l, p io.Reader) (io.Reader, io.Reader) { return cutOff(l), p },
			nil, 1},
		"the parts are others": {func(l, p io.Reader) (io.Reader, io.Reader) {
			return l,
				bytes.NewReader(make([]byte, 8<<20))
		}, nil, 1},
		"the parts end": {func(l, p io.Reader) (io.Reader, io.Reader) { return l, cutOff(p) },
			nil, 1},
		"the connection is lost": {func(l, p io.Reader) (io.Reader, io.Reader) {
			return l,
				failing{errors.New("lost")}
		}, nil, 1},
		"the list is another layer": {otherList, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := rebuilt(t)
			h := w.holder("node", 0, w.layers, nil)
			there := w.cutter(h, test.change)
			if test.set != nil {
				test.set(w, h)
			}
			f, err := w.fetch(long, h)
			check(t, err)
			w.whole()
			if taken := f.Taken(); there.opened != test.opened || len(h.asked) != 1 || len(taken) != 1 ||
				taken[0].Partly != 0 || taken[0].Failed != nil {
				t.Errorf("%d times parts, whole: %q: %+v", there.opened, h.asked, taken)
			}
		})
	}
}

func cutOff(in io.Reader) io.Reader {
	if in == nil {
		return nil
	}
	return io.LimitReader(in, 50)
}

// otherList is a list of existing parts that form no layer.
func otherList(list, pieces io.Reader) (io.Reader, io.Reader) {
	if list == nil {
		return nil, pieces
	}
	encoded, _ := io.ReadAll(list)
	const one = 20
	swapped := append([]byte(nil), encoded[:one*4]...)
	swapped = append(swapped, encoded[one*5:one*6]...)
	swapped = append(swapped, encoded[one*4:one*5]...)
	return bytes.NewReader(append(swapped, encoded[one*6:]...)), nil
}

// TestPartlySilent: a holder that goes silent in the middle is not asked again, and the interrupted
// transfer leaves nothing behind.
func TestPartlySilent(t *testing.T) {
	w := rebuilt(t)
	h := w.holder("node", 0, w.layers, nil)
	w.cutter(h, func(list, pieces io.Reader) (io.Reader, io.Reader) {
		if pieces != nil {
			pieces = io.MultiReader(io.LimitReader(pieces, 100), failing{errHang})
		}
		return list, pieces
	})
	other := w.holder("other", 1, w.layers, nil)
	f, err := w.fetch(short, h, other)
	check(t, err)
	w.whole()
	if taken := f.Taken(); !errors.Is(taken[0].Failed, errSilent) || len(h.asked) > 0 ||
		len(other.asked) != 1 {
		t.Errorf("whole from %q and %q: %+v", h.asked, other.asked, taken)
	}
}

// dripping is a holder's endless answer of which a byte comes now and then.
type dripping struct{}

func (dripping) Read(p []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	return copy(p[:1], "x"), nil
}

// TestPartlyDrips: a holder that is never silent and never done does not delay the layer for ever.
func TestPartlyDrips(t *testing.T) {
	w := rebuilt(t)
	h := w.holder("node", 0, w.layers, nil)
	w.cutter(h, func(list, _ io.Reader) (io.Reader, io.Reader) { return list, dripping{} })
	// just slow enough to be worth it
	h.Speed = float64(len(w.raw[w.layers[0].DiffID])) * 8 / worthTime.Seconds()
	_, err := w.fetch(short, h)
	check(t, err)
	w.whole()
	if len(h.asked) != 1 {
		t.Errorf("whole from %q", h.asked)
	}
}
