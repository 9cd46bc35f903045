package fetch

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/image"
)

// Patience with holders that are silent on purpose, and with others.
const (
	short = time.Second
	long  = time.Minute
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// archive makes a layer with one file.
func archive(t *testing.T, content string) (layer Layer, raw []byte) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	check(t, w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: int64(len(content)),
		Typeflag: tar.TypeReg}))
	_, err := io.WriteString(w, content)
	check(t, errors.Join(err, w.Close()))
	sum := sha256.Sum256(b.Bytes())
	return Layer{DiffID: "sha256:" + hex.EncodeToString(sum[:]), Archive: int64(b.Len())}, b.Bytes()
}

// world is some layers, and a store that has none of them.
type world struct {
	*testing.T
	dir    string
	store  *image.Store
	layers []Layer
	raw    map[string][]byte
}

func newWorld(t *testing.T, layers int) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir(), raw: map[string][]byte{}}
	for i := range layers {
		layer, raw := archive(t, fmt.Sprintf("layer %d %s", i, strings.Repeat("x", 100<<10)))
		w.layers = append(w.layers, layer)
		w.raw[layer.DiffID] = raw
	}
	w.open()
	return w
}

func (w *world) open() {
	w.Helper()
	store, err := image.Open(w.dir)
	check(w.T, err)
	w.store = store
}

// holder returns a holder of the given layers; change is the only thing wrong with its deliveries.
func (w *world) holder(name string, speed float64, have []Layer,
	change func(diffID string, raw []byte) (string, io.Reader, error)) *holder {
	h := &holder{Holder: &Holder{Kind: "node", Name: name, Speed: speed, Layers: map[string]int64{}}}
	for _, layer := range have {
		h.Layers[layer.DiffID] = int64(len(w.raw[layer.DiffID]))
	}
	h.Open = func(ctx context.Context, diffIDs []string) (Delivery, error) {
		h.note(diffIDs)
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Only Close ends it.
		next := func() (string, io.Reader, error) {
			if len(diffIDs) == 0 {
				return "", nil, io.EOF
			}
			diffID := diffIDs[0]
			diffIDs = diffIDs[1:]
			if change != nil {
				return change(diffID, w.raw[diffID])
			}
			return diffID, bytes.NewReader(w.raw[diffID]), nil
		}
		return &parcel{ctx: ctx, cancel: cancel, next: next}, nil
	}
	return h
}

type holder struct {
	*Holder
	mu    sync.Mutex
	asked []string
}

func (h *holder) note(diffIDs []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, diffIDs...)
}

// parcel is a delivery whose readers end when it is closed.
type parcel struct {
	ctx    context.Context
	cancel context.CancelFunc
	next   func() (string, io.Reader, error)
}

func (p *parcel) Next() (string, io.Reader, error) {
	name, content, err := p.next()
	if content == nil && err == nil {
		<-p.ctx.Done() // it sends nothing
		return "", nil, p.ctx.Err()
	}
	return name, &stoppable{p.ctx, content}, err
}

func (p *parcel) Close() error {
	p.cancel()
	return nil
}

type stoppable struct {
	ctx context.Context
	in  io.Reader
}

func (s *stoppable) Read(p []byte) (int, error) {
	if s.in == nil {
		return 0, io.EOF
	}
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := s.in.Read(p[:min(len(p), 16<<10)])
	if errors.Is(err, errHang) {
		<-s.ctx.Done()
		err = s.ctx.Err()
	}
	return n, err
}

var errHang = errors.New("hangs")

// hanging delivers some bytes and then stalls.
func hanging(diffID string, raw []byte) (string, io.Reader, error) {
	return diffID, io.MultiReader(bytes.NewReader(raw[:len(raw)/2]), failing{errHang}), nil
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// fetch runs a fetch of all layers.
func (w *world) fetch(patience time.Duration, holders ...*holder) (*Fetch, error) {
	config := Config{Store: w.store, Layers: w.layers, Patience: patience}
	for _, h := range holders {
		config.Holders = append(config.Holders, h.Holder)
	}
	f := New(config)
	return f, f.Run(w.Context())
}

// whole checks that all layers are here, and that nothing else is.
func (w *world) whole() {
	w.Helper()
	for _, layer := range w.layers {
		path, err := w.store.LayerPath(layer.DiffID)
		check(w.T, err)
		content, err := os.ReadFile(filepath.Join(path, "file"))
		check(w.T, err)
		if !bytes.Contains(w.raw[layer.DiffID], content) || len(content) == 0 {
			w.Errorf("layer %s has another content", layer.DiffID)
		}
	}
	w.clean()
}

// clean checks that nothing unfinished is left.
func (w *world) clean() {
	w.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, "layers", "sha256"))
	check(w.T, err)
	for _, entry := range entries {
		if !w.store.HasLayer("sha256:" + entry.Name()) {
			w.Errorf("left: %s", entry.Name())
		}
	}
}

// TestNearest: each layer comes from the fastest holder that has it, and existing layers are not fetched.
func TestNearest(t *testing.T) {
	w := newWorld(t, 4)
	slow := w.holder("slow", 1e6, w.layers, nil)
	fast := w.holder("fast", 1e9, w.layers[1:3], nil)
	check(t, w.store.ImportLayer(t.Context(), w.layers[3].DiffID, bytes.NewReader(w.raw[w.layers[3].DiffID])))
	f, err := w.fetch(long, slow, fast)
	check(t, err)
	w.whole()
	if !slices.Equal(slow.asked, []string{w.layers[0].DiffID}) ||
		!slices.Equal(fast.asked, []string{w.layers[1].DiffID, w.layers[2].DiffID}) {
		t.Errorf("slow was asked for %q, fast for %q", slow.asked, fast.asked)
	}
	for _, taken := range f.Taken() {
		if taken.Failed != nil || taken.Bytes == 0 || taken.Layers == 0 {
			t.Errorf("%+v", taken)
		}
	}
}

// TestBadHolders: a holder that sends nothing, something else, too much or too little, or breaks off, is
// not asked again; the next one is, and nothing of the bad one stays.
func TestBadHolders(t *testing.T) {
	other, otherRaw := archive(t, "another layer")
	for name, change := range map[string]func(diffID string, raw []byte) (string, io.Reader, error){
		"nothing":    func(string, []byte) (string, io.Reader, error) { return "", nil, nil },
		"breaks off": func(string, []byte) (string, io.Reader, error) { return "", nil, io.ErrUnexpectedEOF },
		"breaks off late": func(id string, raw []byte) (string, io.Reader, error) {
			return id, io.MultiReader(bytes.NewReader(raw[:2000]), failing{io.ErrUnexpectedEOF}), nil
		},
		"falls silent": hanging,
		"another layer": func(string, []byte) (string, io.Reader, error) {
			return other.DiffID,
				bytes.NewReader(otherRaw), nil
		},
		"another content": func(id string, _ []byte) (string, io.Reader, error) {
			return id,
				bytes.NewReader(otherRaw), nil
		},
		"damaged": func(id string, raw []byte) (string, io.Reader, error) {
			raw = bytes.Clone(raw)
			raw[1000] ^= 1
			return id, bytes.NewReader(raw), nil
		},
		"too little": func(id string, raw []byte) (string, io.Reader, error) {
			return id, bytes.NewReader(raw[:len(raw)/2]), nil
		},
		"too much": func(id string, raw []byte) (string, io.Reader, error) {
			return id, io.MultiReader(bytes.NewReader(raw), endless{}), nil
		},
		"a huge file": func(id string, _ []byte) (string, io.Reader, error) {
			var b bytes.Buffer
			if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "file", Size: 1 << 50,
				Typeflag: tar.TypeReg}); err != nil {
				return "", nil, err
			}
			return id, io.MultiReader(&b, endless{}), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 3)
			bad := w.holder("bad", 1e9, w.layers, change)
			good := w.holder("good", 1e6, w.layers, nil)
			patience := long
			if name == "nothing" || name == "falls silent" {
				patience = short
			}
			f, err := w.fetch(patience, bad, good)
			check(t, err)
			w.whole()
			if taken := f.Taken(); len(taken) != 2 || taken[0].Failed == nil || taken[0].Layers > 0 ||
				taken[1].Failed != nil || taken[1].Layers != 3 {
				t.Errorf("%+v", taken)
			}
		})
		t.Run(name+", alone", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			if _, err := w.fetch(short, w.holder("bad", 1e9, w.layers, change)); err == nil ||
				!strings.Contains(err.Error(), "no source can send") {
				t.Errorf("error: %v", err)
			}
			w.clean()
		})
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestCannotOpen: a holder that cannot be reached is like one that breaks off.
func TestCannotOpen(t *testing.T) {
	w := newWorld(t, 1)
	gone := w.holder("gone", 1e9, w.layers, nil)
	gone.Open = func(context.Context, []string) (Delivery, error) { return nil, errors.New("no way there") }
	mute := w.holder("mute", 1e8, w.layers, nil)
	mute.Open = func(ctx context.Context, _ []string) (Delivery, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f, err := w.fetch(short, gone, mute, w.holder("good", 1, w.layers, nil))
	check(t, err)
	w.whole()
	if taken := f.Taken(); len(taken) != 3 || taken[0].Failed == nil ||
		!errors.Is(taken[1].Failed, errSilent) {
		t.Errorf("%+v", taken)
	}
}

// TestSlow: a holder that turns out to be slow is replaced by a faster one, and used again if that one
// fails.
func TestSlow(t *testing.T) {
	w := newWorld(t, 2)
	f := New(Config{Store: w.store, Layers: w.layers, Holders: []*Holder{
		w.holder("deceptive", 1e9, w.layers, nil).Holder, w.holder("steady", 1e8, w.layers[:1], nil).Holder,
	}})
	deceptive, first, second := f.tallies[0], w.layers[0].DiffID, w.layers[1].DiffID
	check(t, f.seen(deceptive, first, 1<<10, slowAfter/2))
	check(t, f.seen(deceptive, second, 1<<10, slowAfter)) // no other holder has it
	err := f.seen(deceptive, first, 1<<10, time.Second)
	if !errors.Is(err, errSlow) {
		t.Fatalf("error: %v", err)
	}
	check(t, f.fail(t.Context(), deceptive, fmt.Errorf("layer: %w", err)))
	if f.best(first, nil).Name != "steady" || f.best(second, nil) != deceptive ||
		deceptive.taken.Failed != nil {
		t.Errorf("%+v", f.tallies)
	}
	check(t, f.fail(t.Context(), f.tallies[1], io.ErrUnexpectedEOF))
	if f.best(first, nil) != deceptive {
		t.Error("it is not asked again")
	}
	check(t, f.seen(deceptive, first, 1<<10, time.Hour)) // only once
}

// TestTogether: two fetches of the same layers fetch each once. If one of them fails, the other takes over.
func TestTogether(t *testing.T) {
	for name, change := range map[string]func(string, []byte) (string, io.Reader, error){"well": nil,
		"badly": hanging} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			opened, goOn := make(chan struct{}), make(chan struct{})
			first := w.holder("first", 1e9, w.layers, change)
			open := first.Open
			first.Open = func(ctx context.Context, diffIDs []string) (Delivery, error) {
				close(opened)
				<-goOn
				return open(ctx, diffIDs)
			}
			failed := make(chan error, 1)
			patience := short
			if change == nil {
				patience = long
			}
			go func() {
				_, err := w.fetch(patience, first)
				failed <- err
			}()
			<-opened
			second := w.holder("second", 1e9, w.layers, nil)
			done := make(chan error, 1)
			go func() {
				_, err := w.fetch(long, second)
				done <- err
			}()
			close(goOn)
			if err := <-failed; err != nil && change == nil {
				t.Errorf("the first: %v", err)
			}
			check(t, <-done)
			w.whole()
			if change == nil && len(second.asked) > 0 {
				t.Errorf("it was asked for %q a second time", second.asked)
			}
		})
	}
}

// TestInterrupted: an interrupted fetch leaves nothing, whether the fetch ends or its process does.
func TestInterrupted(t *testing.T) {
	w := newWorld(t, 2)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("not wanted any more")
	stuck := w.holder("stuck", 1e9, w.layers, func(diffID string, raw []byte) (string, io.Reader, error) {
		if diffID == w.layers[0].DiffID {
			return diffID, bytes.NewReader(raw), nil
		}
		cancel(why)
		return hanging(diffID, raw)
	})
	f := New(Config{Store: w.store, Layers: w.layers, Holders: []*Holder{stuck.Holder}, Patience: long})
	if err := f.Run(ctx); !errors.Is(err, why) {
		t.Errorf("error: %v", err)
	}
	w.clean()
	if !w.store.HasLayer(w.layers[0].DiffID) || w.store.HasLayer(w.layers[1].DiffID) {
		t.Error("the first layer is lost, or the second there")
	}
	if taken := f.Taken(); len(taken) != 1 || taken[0].Failed != nil {
		t.Errorf("it is blamed: %+v", taken)
	}
	half := filepath.Join(w.dir, "layers", "sha256", ".new-1")
	check(t, os.MkdirAll(filepath.Join(half, "fs"), 0o700))
	w.open()
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half a layer that an agent left which was killed: %v", err)
	}
	_, err := w.fetch(long, w.holder("good", 1e6, w.layers, nil))
	check(t, err)
	w.whole()
}

// TestDiskFull: if there is no space, no other holder is asked.
func TestDiskFull(t *testing.T) {
	w := newWorld(t, 1)
	w.dir = t.TempDir()
	check(t, unix.Mount("tmpfs", w.dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { check(t, unix.Unmount(w.dir, unix.MNT_DETACH)) })
	w.open()
	other := w.holder("other", 1, w.layers, nil)
	f, err := w.fetch(long, w.holder("first", 1e9, w.layers, nil), other)
	if !errors.Is(err, unix.ENOSPC) || len(other.asked) > 0 {
		t.Errorf("error: %v; the other was asked for %q", err, other.asked)
	}
	if taken := f.Taken(); len(taken) != 1 || taken[0].Failed != nil {
		t.Errorf("it is blamed: %+v", taken)
	}
	w.clean()
}
