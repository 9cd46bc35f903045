package reserve

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestTake: of two containers that come at once, the second is refused if they conflict.
func TestTake(t *testing.T) {
	address := netip.MustParseAddr("10.88.1.2")
	first := engine.Definition{ID: "1", Name: "web"}
	first.Network.Address = address
	with := func(change func(*engine.Definition)) engine.Definition {
		other := engine.Definition{ID: "2", Name: "db"}
		change(&other)
		return other
	}
	r := New()
	if err := r.Take("m1", first); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		what   string
		second engine.Definition
		want   error
		says   string
	}{
		{"its name", with(func(d *engine.Definition) { d.Name = "web" }), engine.ErrNameTaken, "web"},
		{"its id", with(func(d *engine.Definition) { d.ID = "1" }), engine.ErrBusy, "m1"},
		{"its address", with(func(d *engine.Definition) { d.Network.Address = address }), engine.ErrBusy,
			"10.88.1.2"},
	} {
		if err := r.Take("m2", one.second); !errors.Is(err, one.want) ||
			!strings.Contains(err.Error(), one.says) {
			t.Errorf("%s: %v", one.what, err)
		}
	}
	if err := r.Take("m1", first); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := r.Take("m2", with(func(*engine.Definition) {})); err != nil {
		t.Errorf("another one: %v", err)
	}
	r.Release("m1")
	if err := r.Take("m3", first); err != nil {
		t.Errorf("after it was released: %v", err)
	}
}

// TestPromises: a container counts earlier containers that are still to be filled, and how much was free
// before the first of them.
func TestPromises(t *testing.T) {
	r := New()
	r.Fill("m1", "a", 10, 100)
	r.Fill("m2", "a", 20, 90)
	r.Fill("other", "b", 5, 80)
	check := func(when, one string, own []string, wantBytes, wantFree int64) {
		t.Helper()
		if bytes, free := r.PromisedTo("a", one, own...); bytes != wantBytes || free != wantFree {
			t.Errorf("%s: %d promised, %d were free; want %d and %d", when, bytes, free, wantBytes, wantFree)
		}
	}
	check("the first", "m1", nil, 0, 100)
	check("the second", "m2", nil, 10, 100)
	check("one that comes now", "m3", nil, 30, 100)
	check("one whose staged copy is among them", "m3", []string{"m1"}, 20, 100)
	if got := r.Promised("m1"); got != 25 {
		t.Errorf("to all but the first: %d", got)
	}
	r.Fill("m1", "a", 0, 1) // all of its memory has come
	check("when the first is filled", "m2", nil, 0, 100)
	r.Release("m2")
	check("when nothing is promised any more", "m3", nil, 0, 0)
	r.Release("unknown")
}
