package agent

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/godwit/godwit/internal/engine"
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
	a := newTestAgent(t)
	a.networked = []*networkList{{engine: hangs}, {engine: works}}
	routed := engine.RoutedNetwork{Device: "br0", Subnet: netip.MustParsePrefix("10.89.0.0/16")}
	works.tells <- []engine.RoutedNetwork{routed}
	for {
		if known, err := a.routedNetworks(t.Context()); err != nil {
			t.Fatal(err)
		} else if len(known) == 1 && known[0].Subnet == routed.Subnet {
			break
		}
	}
	close(works.tells)
	for failed := false; !failed; {
		known, err := a.routedNetworks(t.Context())
		if failed = err != nil; len(known) != 1 {
			t.Fatalf("%v, %v", known, err)
		}
	}
	close(hangs.tells)
	a.looks.Wait()
}
