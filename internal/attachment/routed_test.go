package attachment

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/network"
)

// routing is an engine that tells of its networks when the test lets it.
type routing struct {
	name  string
	tells chan []engine.RoutedNetwork
}

func (r *routing) Name() string { return r.name }

func (r *routing) RoutedNetworks(context.Context) ([]engine.RoutedNetwork, error) {
	if told, more := <-r.tells; more {
		return told, nil
	}
	return nil, errors.New("on purpose")
}

// TestHungEngineDelaysNoNetworks: the networks of engines that answer are routed, whatever another engine
// does. What an engine has told stays when it fails.
func TestHungEngineDelaysNoNetworks(t *testing.T) {
	hangs, works := &routing{"hangs", make(chan []engine.RoutedNetwork)},
		&routing{"works", make(chan []engine.RoutedNetwork, 1)}
	var looks inventory.Looks
	var set []network.RoutedNetwork
	r := NewRouted([]Networked{hangs, works}, func(networks []network.RoutedNetwork) error {
		set = networks
		return nil
	}, &looks, slog.New(slog.DiscardHandler))
	routed := engine.RoutedNetwork{Device: "br0", Subnet: netip.MustParsePrefix("10.89.0.0/16")}
	works.tells <- []engine.RoutedNetwork{routed}
	for {
		if known, err := r.networks(t.Context()); err != nil {
			t.Fatal(err)
		} else if len(known) == 1 && known[0].Subnet == routed.Subnet {
			break
		}
	}
	close(works.tells)
	for failed := false; !failed; {
		known, err := r.networks(t.Context())
		if failed = err != nil; len(known) != 1 {
			t.Fatalf("%v, %v", known, err)
		}
	}
	if err := r.follow(t.Context()); err == nil || len(set) != 1 {
		t.Errorf("%v: set %v, want what was told last", err, set)
	}
	close(hangs.tells)
	looks.Wait()
}
