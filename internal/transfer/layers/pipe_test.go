package layers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/fetch"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// having is an engine that has a layer.
type having struct {
	keeping
	layer []byte
}

func (h *having) LayerBytes(diffID string) (int64, error) {
	if diffID != digest(h.layer) {
		return 0, engine.ErrNoLayer
	}
	return int64(len(h.layer)), nil
}

func (h *having) OpenLayer(string) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(h.layer)), nil
}

// haves are the engines of a node whose only one has a layer.
type haves struct{ images *having }

func (h haves) Images() []engine.Images                { return []engine.Images{h.images} }
func (h haves) ImagesOf(string) (engine.Images, error) { return h.images, nil }

// way is a connection that is cut when so many bytes have come.
type way struct {
	net.Conn
	left *atomic.Int64
}

var errCut = errors.New("the connection is cut")

func (w way) Read(data []byte) (int, error) {
	n, err := w.Conn.Read(data)
	if w.left.Add(-int64(n)) < 0 {
		w.Close()
		return 0, errCut
	}
	return n, err
}

// to makes the Dial of a node from which another one is reached over such a connection.
func to(t *testing.T, other *Mover, left *atomic.Int64) func(context.Context, identity.Node,
	string) (*stream.Session, error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(t.Context(), other, conn)
		}
	}()
	return func(ctx context.Context, _ identity.Node, transfer string) (*stream.Session, error) {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return nil, err
		}
		return stream.Open(ctx, way{conn, left}, stream.Hello{Migration: transfer, Purpose: "layers"},
			stream.Options{})
	}
}

func serve(ctx context.Context, m *Mover, conn net.Conn) {
	defer conn.Close()
	var transfer *Transfer
	check := func(hello stream.Hello) (err error) {
		transfer, err = m.Transfer(hello.Migration, "b")
		return err
	}
	data, _, err := stream.Answer(ctx, conn, check, stream.Options{})
	if err != nil {
		return
	}
	defer data.Close()
	_ = m.Serve(ctx, data, transfer, "b") // the other end says what came of it
}

// offered is a node with a layer, and a request for it as it comes to another node.
func offered(t *testing.T) (source *Mover, layer []byte, request *api.FetchRequest) {
	t.Helper()
	content := make([]byte, 300<<10)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(content)
	layer = layerOf(t, string(content))
	source = moverOf(t, &keeping{})
	source.engines = haves{&having{layer: layer}}
	config := []byte(`{"rootfs":{"type":"layers","diff_ids":["` + digest(layer) + `"]}}`)
	return source, layer, &api.FetchRequest{
		Engine: "docker", Image: digest(config), ConfigJson: config,
		Layers: source.Here([]string{digest(layer), digest(nil)}),
	}
}

// lacking is a node whose engine lacks a layer.
func lacking(t *testing.T, layer []byte) (*Mover, *keeping) {
	t.Helper()
	lack := engine.Lack{Image: true, Layers: []string{digest(layer)}}
	k := &keeping{lacks: []engine.Lack{lack}, take: []error{nil}}
	return moverOf(t, k), k
}

// TestLayerOverAPipe: a layer that one node has comes to another one, and wherever the connection is cut
// nothing comes to the engine that is not whole.
func TestLayerOverAPipe(t *testing.T) {
	source, layer, request := offered(t)
	const far = 1 << 40
	var left atomic.Int64
	left.Store(far)
	target, k := lacking(t, layer)
	target.dial = to(t, source, &left)
	told, err := fetched(t, target, request)
	if err != nil || !slices.Equal(k.taken, []string{digest(layer)}) {
		t.Fatalf("taken %v, %v", k.taken, err)
	}
	if len(told.Taken) != 1 || told.Taken[0].Kind != kindSource || told.Taken[0].Bytes < int64(len(layer)) {
		t.Errorf("told: %+v", told)
	}
	const cuts = 16
	all := far - left.Load()
	for n := range int64(cuts) {
		target, k := lacking(t, layer)
		left.Store(all * n / cuts)
		target.dial = to(t, source, &left)
		if _, err := fetched(t, target, request); err == nil || len(k.taken) > 0 {
			t.Errorf("cut after %d of %d bytes: taken %v, %v", all*n/cuts, all, k.taken, err)
		}
		left.Store(far) // what has come stays, and need not come again
		if _, err := fetched(t, target, request); err != nil || len(k.taken) != 1 {
			t.Errorf("after a cut at %d of %d bytes: taken %v, %v", all*n/cuts, all, k.taken, err)
		}
	}
}

// TestWhatIsNotThere: a node that has a layer no more says so, and a transfer that nobody began is refused.
func TestWhatIsNotThere(t *testing.T) {
	var left atomic.Int64
	left.Store(1 << 40)
	for what, change := range map[string]func(*Mover, *api.FetchRequest){
		"an unknown transfer": func(_ *Mover, request *api.FetchRequest) { request.Transfer = "unknown" },
		"a layer that has gone": func(source *Mover,
			_ *api.FetchRequest) {
			source.engines = haves{&having{}}
		},
	} {
		source, layer, request := offered(t)
		change(source, request)
		target, k := lacking(t, layer)
		target.dial = to(t, source, &left)
		told, err := fetched(t, target, request)
		if err == nil || len(k.taken) > 0 || len(told.Taken) != 1 || told.Taken[0].Error == "" {
			t.Errorf("%s: %+v, taken %v, %v", what, told, k.taken, err)
		}
	}
	source, _, _ := offered(t)
	if one, err := source.Transfer("unknown", "b"); !errors.Is(err, api.ErrInvalid) || one != nil {
		t.Errorf("an unknown transfer: %v, %v", one, err)
	}
	done := source.transfers.begin(&Transfer{ID: "known", Node: "b"})
	if _, err := source.Transfer("known", "c"); err == nil {
		t.Error("a transfer to b serves c")
	}
	if one, err := source.Transfer("known", "b"); err != nil || one == nil {
		t.Errorf("a transfer to b: %v, %v", one, err)
	}
	done()
	if _, err := source.Transfer("known", "b"); err == nil {
		t.Error("a transfer that has ended serves on")
	}
}

// TestBringFails: an image that a node cannot describe, and a node that cannot be reached.
func TestBringFails(t *testing.T) {
	source, layer, _ := offered(t)
	transfer := &Transfer{ID: "m", Node: "b"}
	container := engine.Definition{EngineName: "docker", ImageID: digest([]byte("none")),
		Layers: []string{digest(layer)}}
	described := &describing{}
	source.engines = describes{described}
	for _, one := range []struct {
		image engine.Image
		err   error
		want  string
	}{
		{engine.Image{}, errors.New("the engine hangs"), "the engine hangs"},
		{engine.Image{Config: make([]byte, maxImageConfig+1)}, nil, "are not sent"},
		{engine.Image{Manifests: [][]byte{make([]byte, maxManifests+1)}}, nil, "are not sent"},
		{engine.Image{}, nil, errUnreached.Error()},
	} {
		described.image, described.err = one.image, one.err
		_, err := source.Bring(t.Context(),
			Bringing{Node: identity.Node{Name: "b"}, Container: container, Transfer: transfer})
		if err == nil || !strings.Contains(err.Error(), one.want) {
			t.Errorf("error %v, want %q", err, one.want)
		}
		if _, err := source.Transfer("m", "b"); err == nil {
			t.Error("the transfer has not ended")
		}
	}
}

// describing is an engine that says something of an image.
type describing struct {
	keeping
	image engine.Image
	err   error
}

func (d *describing) Image(context.Context, string) (engine.Image, error) { return d.image, d.err }

type describes struct{ images *describing }

func (d describes) Images() []engine.Images                { return nil }
func (d describes) ImagesOf(string) (engine.Images, error) { return d.images, nil }

// TestSpeeds: who was slow or failed is asked after the others, for a while.
func TestSpeeds(t *testing.T) {
	s := newSpeeds()
	near := &fetch.Holder{Kind: kindNode, Name: "b"}
	if got := s.of(near, nearGuess); got != nearGuess {
		t.Errorf("of an unknown holder: %g", got)
	}
	s.learn([]fetch.Taken{{Kind: kindSource, Name: "b", Failed: errCut}})
	if got := s.of(near, nearGuess); got != failedSpeed {
		t.Errorf("of one that failed: %g", got)
	}
	key := speedKey(kindNode, "b")
	s.seen[key] = speed{failedSpeed, s.seen[key].at.Add(-2 * speedLasts)}
	if got := s.of(near, nearGuess); got != nearGuess {
		t.Errorf("of one that failed long ago: %g", got)
	}
}
