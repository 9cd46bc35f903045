package attachment

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/network"
)

// telling is an engine that tells of one change, and of no more until the test ends.
type telling struct{ fakeEngine }

func (*telling) Watch(ctx context.Context, watching, changed func()) error {
	watching()
	changed()
	<-ctx.Done()
	return ctx.Err()
}

// heard is what lists were told.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) tell(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, what)
}

func (h *heard) SetWatching(is bool) {
	h.tell(map[bool]string{true: "watching", false: "not watching"}[is])
}

func (h *heard) Changed(engine.Engine) { h.tell("changed") }

func (h *heard) said(what ...string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Equal(h.all, what)
}

// TestKeeper looks at all once, again when an engine tells of a change, and again when it is asked to.
func TestKeeper(t *testing.T) {
	n, lists, log := newNode(t), &heard{}, slog.New(slog.DiscardHandler)
	var looks inventory.Looks
	routed := NewRouted(nil, func([]network.RoutedNetwork) error { return nil }, &looks, log)
	k := NewKeeper(KeeperConfig{
		Adopter: n.adopter, Bridges: newBridges(n, &looks), Routed: routed,
		Looks: &looks, Network: n.network, Watched: &telling{}, Lists: lists, Log: log,
	})
	ctx, end := context.WithCancel(t.Context())
	var over sync.WaitGroup
	looked := 0
	again := func(what string) {
		t.Helper()
		await.True(t, what, func() bool {
			before := looked
			for _, call := range n.network.called() {
				if call == "overlay" {
					looked++
				}
			}
			return looked > before
		})
	}
	over.Go(func() { k.Run(ctx) })
	again("looked at first")
	over.Go(func() { k.Watch(ctx) })
	again("looked at when the engine tells")
	await.True(t, "the lists hear of it", func() bool { return lists.said("watching", "changed") })
	k.Look()
	k.Look() // which is about to happen
	again("looked at when asked")
	end()
	over.Wait()
	looks.Wait()
	if !lists.said("watching", "changed", "not watching") {
		t.Errorf("%v", lists.all)
	}
}

// TestPauseAfter: the longer a look takes, the longer is the pause before the next one, within bounds.
func TestPauseAfter(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: watchPause, 100 * time.Millisecond: time.Second, time.Minute: adoptEvery,
	} {
		if pause := pauseAfter(took); pause != want {
			t.Errorf("%s: %s, want %s", took, pause, want)
		}
	}
}
