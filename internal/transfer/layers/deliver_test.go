package layers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

var errTest = errors.New("it fails on purpose")

// delivering is a delivery that ends when the test says so.
func delivering(told *[]string) *Delivery {
	return &Delivery{
		transfer: &Transfer{}, cancel: func() {}, log: slog.New(slog.DiscardHandler),
		done: make(chan struct{}),
		note: func(what string) { *told = append(*told, what) },
	}
}

// noImages are the engines of a node whose images are in the agent's store.
type noImages struct{}

func (noImages) Images() []engine.Images                { return nil }
func (noImages) ImagesOf(string) (engine.Images, error) { return nil, nil }

// TestDeliverFails: a delivery that cannot begin, or whose image nobody knows, says why. What became of the
// layers is told in any case.
func TestDeliverFails(t *testing.T) {
	for what, before := range map[string]error{"before": errTest, "image": nil} {
		m := moverOf(t, &keeping{})
		m.engines = noImages{}
		told := 0
		d := m.Deliver(t.Context(), Order{
			Bringing: Bringing{
				Container: engine.Definition{ImageID: "sha256:none"},
				Transfer:  &Transfer{ID: "one", Node: "b"},
				Progress:  func(migration.Layers) { told++ },
			},
			Before: func(context.Context) error { return before },
		})
		err := d.Await(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), "bring the image: ") || before != nil &&
			!errors.Is(err, before) || d.UnderWay() || (told == 1) != (before == nil) {
			t.Errorf("%s: %v, told %d times", what, err, told)
		}
		d.Cancel()
	}
}

// TestNoDelivery: where nothing has to be brought, nobody waits.
func TestNoDelivery(t *testing.T) {
	var none *Delivery
	none.Cancel()
	round := func(context.Context) error { return errTest }
	if none.UnderWay() || none.Await(t.Context()) != nil || none.Meanwhile(t.Context(), nil, round) != nil {
		t.Error("nothing is brought")
	}
	if _, sending := none.Left(); sending {
		t.Error("something is sent")
	}
	if err := none.Beside(t.Context(), nil, round); !errors.Is(err, errTest) {
		t.Error(err)
	}
}

// TestAwait: a wait that the user notices is told, and one that nobody wants any more ends.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		d := delivering(&told)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errTest)
		if err := d.Await(ctx); !errors.Is(err, errTest) || !d.UnderWay() {
			t.Error(err)
		}
		time.AfterFunc(time.Second, func() { close(d.done) })
		if err := d.Await(t.Context()); err != nil || d.UnderWay() {
			t.Error(err)
		}
		d.err = errTest
		if err := d.Await(t.Context()); !errors.Is(err, errTest) {
			t.Error(err)
		}
		if len(told) != 1 || !strings.Contains(told[0], "waited 1s for layers") {
			t.Errorf("told: %q", told)
		}
	})
}

// TestBeside: what is done beside layers is interrupted when they cannot be brought, and only then.
func TestBeside(t *testing.T) {
	var told []string
	d := delivering(&told)
	fails := func(context.Context) error { return errTest }
	if err := d.Beside(t.Context(), func(error) {}, fails); !errors.Is(err, errTest) {
		t.Errorf("a failure of its own: %v", err)
	}
	interrupted := make(chan error, 1)
	err := d.Beside(t.Context(), func(why error) { interrupted <- why }, func(ctx context.Context) error {
		d.err = errTest
		close(d.done)
		<-ctx.Done()
		return <-interrupted
	})
	if !errors.Is(err, errTest) {
		t.Error(err)
	}
	d = delivering(&told)
	close(d.done)
	err = d.Beside(t.Context(), func(error) { t.Error("interrupted") }, func(ctx context.Context) error {
		return ctx.Err()
	})
	if err != nil {
		t.Errorf("beside layers that have come: %v", err)
	}
}

// pace is one at which the next round is always due, or never.
type pace struct {
	did  int
	next time.Time
}

func (p *pace) Did(_, _ time.Time) { p.did++ }
func (p *pace) Next() time.Time    { return p.next }

// TestMeanwhile: rounds go on until the layers are there, and those that have not begun then are left out.
func TestMeanwhile(t *testing.T) {
	var told, did []string
	d := delivering(&told)
	p := &pace{}
	files := func(context.Context) error {
		if did = append(did, "files"); len(did) == 3 {
			close(d.done)
		}
		return nil
	}
	memory := func(context.Context) error {
		did = append(did, "memory")
		return nil
	}
	if err := d.Meanwhile(t.Context(), p, files, memory); err != nil {
		t.Error(err)
	}
	if want := []string{"files", "memory", "files"}; !slices.Equal(did, want) || p.did != 2 {
		t.Errorf("%q, in %d turns; want %q", did, p.did, want)
	}
	d = delivering(&told)
	fails := func(context.Context) error { return errTest }
	if err := d.Meanwhile(t.Context(), p, fails); !errors.Is(err, errTest) {
		t.Error(err)
	}
	p.next = time.Now().Add(time.Hour)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupts := func(context.Context) error {
		cancel(errTest)
		return nil
	}
	if err := d.Meanwhile(ctx, p, interrupts); !errors.Is(err, errTest) {
		t.Errorf("between two rounds: %v", err)
	}
	comes := func(context.Context) error {
		close(d.done)
		return nil
	}
	if err := d.Meanwhile(t.Context(), p, comes); err != nil {
		t.Errorf("when layers come between two rounds: %v", err)
	}
}

// TestStoredBytes: only layers count that are missing elsewhere, and here.
func TestStoredBytes(t *testing.T) {
	source, layer, _ := offered(t)
	here := source.Here([]string{digest(layer)})
	if len(here) != 1 {
		t.Fatalf("%+v", here)
	}
	all := []string{digest(layer), digest(nil)}
	for _, c := range []struct {
		missing []string
		want    *api.Layer
	}{{nil, nil}, {all, here[0]}, {all[:1], here[0]}, {all[1:], nil}} {
		if bytes := source.StoredBytes(all, c.missing); bytes != c.want.GetStoredBytes() {
			t.Errorf("%v are missing: %d bytes", c.missing, bytes)
		}
	}
	if !slices.Equal(all, []string{digest(layer), digest(nil)}) {
		t.Error("the list of layers is changed")
	}
}
